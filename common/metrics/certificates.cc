#include "common/metrics/certificates.h"

#include <utility>

namespace cairn::metrics {

void ExportCertificates(const net::TlsOptions& tls, Registry* registry) {
  if (!tls.enabled()) return;
  registry->AddCollector([server = tls.certificate, ca = tls.client_ca](Sink& sink) {
    for (const auto& [label, path] : {std::pair("server", &server), std::pair("ca", &ca)}) {
      if (path->empty()) continue;
      const Result<double> expiry = net::CertificateExpiry(*path);
      if (!expiry.ok()) continue;
      sink.Gauge("cairn_tls_cert_expiry_timestamp_seconds",
                 "When the certificate ends, seconds since 1970.", {{"cert", label}}, *expiry);
    }
  });
}

}  // namespace cairn::metrics
