#include "common/service/tls_settings.h"

#include <utility>

namespace cairn::service {

void RegisterTls(net::TlsOptions* tls, bool* accept_plaintext, std::string certificate_doc,
                 config::Schema* schema) {
  schema->Text("tls.cert", &tls->certificate, std::move(certificate_doc));
  schema->Text("tls.key", &tls->private_key, "PEM file with the key of tls.cert.");
  schema->Text("tls.client_ca", &tls->client_ca,
               "PEM file with the authority that signs clients' certificates. If set, clients must "
               "show one.");
  schema->Bool("tls.allow_plaintext_beyond_loopback", &tls->allow_plaintext_beyond_loopback,
               "Allow a data port on the network without TLS: anyone there can connect.");
  schema->Switch("i-accept-plaintext-on-the-network", accept_plaintext,
                 "The same as tls.allow_plaintext_beyond_loopback.");
}

}  // namespace cairn::service
