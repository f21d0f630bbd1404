#include "common/membership/static_discovery.h"

#include <utility>

#include "common/net/address.h"

namespace cairn::membership {

Status CheckMemberAddress(const std::string& address, const std::string& field) {
  const auto parsed = net::ParseListenAddress(address, field);
  if (!parsed.ok()) return parsed.status();
  if (parsed->is_unix || parsed->port == 0) {
    return InvalidArgument("{}: got '{}', expected host:port with a port of 1 to 65535", field,
                           address);
  }
  return OkStatus();
}

StaticDiscovery::StaticDiscovery(std::vector<std::string> addresses, const Clock* clock)
    : addresses_(std::move(addresses)), made_(clock->Now()) {}

Status StaticDiscovery::Start(const Member& /*self*/, OnView on_view) {
  if (addresses_.empty()) {
    return InvalidArgument("cluster.members: got no address, expected those of all members");
  }
  std::vector<Member> members;
  for (const std::string& address : addresses_) {
    if (Status status = CheckMemberAddress(address, "cluster.members"); !status.ok()) return status;
    members.push_back({.address = address});
  }
  on_view(MakeView(std::move(members)));
  return OkStatus();
}

DiscoveryHealth StaticDiscovery::health() const {
  return {.complete = true, .last_success = made_};
}

}  // namespace cairn::membership
