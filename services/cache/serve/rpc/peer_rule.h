#pragma once
// The rules that say which process may speak for which member, as the certificates of both sides
// show it.

#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "common/net/tls.h"

namespace cairn::cache {

// In addition to the demands of the transport. Threads may share one: it does not change.
struct PeerRule {
  // With mutual TLS: a name of the other side's certificate must be one of these, where {node_id}
  // stands for the id that it says it has. Empty: any certificate that the authority signed.
  std::vector<std::string> identities;
  bool certificates = false;  // Both sides show certificates.

  // PERMISSION_DENIED: the certificate does not fit the node id.
  Status Check(const net::Caller& there, const std::string& node_id) const;
};

}  // namespace cairn::cache
