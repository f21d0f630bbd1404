#include "services/cache/serve/rpc/peer_rule.h"

#include <string_view>

namespace cairn::cache {
namespace {

constexpr std::string_view kPlaceholder = "{node_id}";

}  // namespace

Status PeerRule::Check(const net::Caller& there, const std::string& node_id) const {
  if (!certificates || identities.empty()) return OkStatus();
  for (std::string identity : identities) {
    if (const size_t at = identity.find(kPlaceholder); at != std::string::npos) {
      identity.replace(at, kPlaceholder.size(), node_id);
    }
    if (net::HasIdentity(there, identity)) return OkStatus();
  }
  return Errorf(StatusCode::kPermissionDenied,
                "cluster.peer_identities: the certificate of {} does not fit node '{}'",
                there.Describe(), node_id);
}

}  // namespace cairn::cache
