#pragma once
// How long the certificates of a server's TLS are good.

#include "common/metrics/metrics.h"
#include "common/net/tls.h"

namespace cairn::metrics {

// cairn_tls_cert_expiry_timestamp_seconds{cert}, of the files as they are at each scrape: `server`,
// and `ca` if clients show certificates. Nothing without TLS.
void ExportCertificates(const net::TlsOptions& tls, Registry* registry);

}  // namespace cairn::metrics
