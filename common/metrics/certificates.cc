#include "common/metrics/certificates.h"

#include <utility>

#include "common/net/loaded_files.h"

namespace cairn::metrics {

void ExportCertificates(const net::TlsOptions& tls, std::vector<NamedCertificate> shown,
                        Registry* registry) {
  shown.insert(shown.begin(), {{"server", tls.certificate}, {"ca", tls.client_ca}});
  std::erase_if(shown, [](const NamedCertificate& one) { return one.path.empty(); });
  if (shown.empty()) return;
  registry->AddCollector([certificates = std::move(shown)](Sink& sink) {
    const net::LoadedFiles& loaded = net::LoadedFiles::OfProcess();
    for (const auto& [cert, path] : certificates) {
      const auto file = loaded.Find(path);
      if (!file) continue;
      sink.Gauge("cairn_tls_cert_expiry_timestamp_seconds",
                 "When the certificate in use ends, seconds since 1970.", {{"cert", cert}},
                 file->expiry);
      sink.Gauge("cairn_tls_files_refused", "1: new files are wrong, and those of before are used.",
                 {{"cert", cert}}, file->refused ? 1 : 0);
    }
    const std::string name = "cairn_tls_reloads_total";
    const std::string help = "Changes of TLS files, by what became of them.";
    const auto counts = loaded.counts();
    sink.Counter(name, help, {{"result", "taken"}}, Number(counts.taken));
    sink.Counter(name, help, {{"result", "refused"}}, Number(counts.refused));
  });
}

}  // namespace cairn::metrics
