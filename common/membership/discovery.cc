#include "common/membership/discovery.h"

#include <algorithm>
#include <tuple>

#include "common/log/log.h"

namespace cairn::membership {
namespace {

bool SameProcessPlace(const Member& a, const Member& b) {
  if (!a.id.empty() || !b.id.empty()) return a.id == b.id;
  return a.address == b.address;
}

}  // namespace

View MakeView(std::vector<Member> members) {
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) {
    // The newest first, so that std::unique keeps it.
    if (a.id != b.id) return a.id < b.id;
    if (a.id.empty()) return a.address < b.address;
    return std::tie(b.epoch, b.incarnation, a.address) <
           std::tie(a.epoch, a.incarnation, b.address);
  });
  members.erase(std::unique(members.begin(), members.end(), SameProcessPlace), members.end());
  return members;
}

void DiscoveryHealth::Note(const Status& status, TimePoint now) {
  if (!status.ok() && last.ok()) log::Warn("discovery_failed", {{"error", Message(status)}});
  last = status;
  if (status.ok()) last_success = now;
}

}  // namespace cairn::membership
