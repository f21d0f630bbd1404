#pragma once
// How the CLI names itself to nodes and workers.

#include <string>

#include "cairn/client/connect.h"
#include "tools/cairn/options.h"

namespace cairn::cli {

inline client::ConnectOptions ConnectionTo(const std::string& address, const TlsFlags& tls = {}) {
  client::ConnectOptions options;
  options.address = address;
  options.client_name = "cairn-cli";
  options.tls.ca_file = tls.ca;
  options.tls.cert_file = tls.cert;
  options.tls.key_file = tls.key;
  options.tls.server_name = tls.server_name;
  return options;
}

}  // namespace cairn::cli
