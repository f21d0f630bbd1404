#pragma once
// The settings of a server's TLS.

#include <string>

#include "common/config/config.h"
#include "common/net/tls.h"

namespace cairn::service {

// tls.cert, tls.key, tls.client_ca, tls.allow_plaintext_beyond_loopback, and
// --i-accept-plaintext-on-the-network, which sets `accept_plaintext`. `certificate_doc`: of
// tls.cert. All targets outlive the schema.
void RegisterTls(net::TlsOptions* tls, bool* accept_plaintext, std::string certificate_doc,
                 config::Schema* schema);

}  // namespace cairn::service
