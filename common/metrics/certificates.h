#pragma once
// How long the certificates of a process are good.

#include <string>
#include <vector>

#include "common/metrics/metrics.h"
#include "common/net/tls.h"

namespace cairn::metrics {

// A file with a certificate, and the label by which metrics call it.
struct NamedCertificate {
  std::string cert = {};
  std::string path = {};  // Empty: there is none.
};

// cairn_tls_*, of what is in use at each scrape: the server's certificate (`server`), the authority
// of its clients (`ca`), and those that it shows to others. Nothing without certificates.
void ExportCertificates(const net::TlsOptions& tls, std::vector<NamedCertificate> shown,
                        Registry* registry);

}  // namespace cairn::metrics
