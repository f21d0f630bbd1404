#pragma once
// The holders of a prompt, as the directory names them: the waymarks of its keys, and one wave of
// questions to the members that own them.

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "services/cache/cluster/directory/owners.h"
#include "services/cache/cluster/peer/peer_health.h"
#include "services/cache/cluster/peer/peer_links.h"

namespace cairn::cache {

// A hint: only a Match of the holder counts.
struct KnownHolders {
  std::vector<PromptWaymark> waymarks;  // Those that were asked for, by position in the prompt.
  // By member: the tier class of each waymark that it holds, by number in `waymarks`.
  std::map<std::string, std::map<size_t, TierClass>> tiers;
};

// Also knows which members can be called, for all who call them. Thread-safe.
class HolderSearch {
 public:
  struct Options {
    std::string self = {};  // The id of this member.
    // After members changed, both owners are asked.
    Duration settling = std::chrono::seconds(30);
    PeerHealth::Options health = {};
  };
  struct Dependencies {
    PeerLinks* links = nullptr;
    const Directory* directory = nullptr;  // This member's own part.
    // Told of a member that knows other bumps of a namespace. Short.
    std::function<void(const std::string& member)> bumps_differ = [](const std::string&) {};
    const Clock* clock = nullptr;
  };
  using Done = std::function<void(KnownHolders)>;

  // All outlive it, and `links` let go of their callbacks before it is destroyed.
  HolderSearch(Options options, Dependencies dependencies);

  // Also says who is a member: nobody else is called, or remembered.
  void SetOwners(std::shared_ptr<const OwnerMap> owners);

  // `done` runs once, when every owner has answered or failed: inside the call, or on a thread of
  // the links, and perhaps after `deadline` (Patience). Only other members are among the holders.
  // The keys are not used after the call.
  void Find(const Digest& fingerprint, std::span<const BlockKey> keys, uint32_t block_tokens,
            TimePoint deadline, Done done);

  PeerHealth& health() { return health_; }
  const PeerHealth& health() const { return health_; }
  // How a call to a member ended, for which its health gave this patience.
  void Note(const std::string& member, const Patience& patience, const Status& status);

 private:
  class Wave;

  const Options options_;
  const Dependencies dependencies_;
  PeerLinks& links_;
  const Directory& directory_;
  const Clock& clock_;
  PeerHealth health_;
  mutable Mutex mu_;
  std::shared_ptr<const OwnerMap> owners_ ABSL_GUARDED_BY(mu_) = std::make_shared<OwnerMap>();
  TimePoint owners_since_ ABSL_GUARDED_BY(mu_){};
};

}  // namespace cairn::cache
