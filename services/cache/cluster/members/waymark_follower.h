#pragma once
// Follows what the engine stores and evicts, and tells the announcer about the waymarks among it.

#include <memory>

#include "absl/container/flat_hash_map.h"
#include "services/cache/cluster/directory/announcer.h"
#include "services/cache/store/engine/cache_engine.h"

namespace cairn::cache {

// Reads the queue of a watcher of its own. When the queue gave up because it was read too slowly,
// it begins again with all that is stored. One thread at a time.
class WaymarkFollower {
 public:
  // Both outlive it.
  WaymarkFollower(CacheEngine* engine, Announcer* announcer, const Clock* clock)
      : engine_(*engine), announcer_(*announcer), clock_(*clock) {}

  // Reads some of what has happened; never waits. True: there may be more.
  bool Step();
  uint64_t restarts() const { return restarts_; }
  // The memory for its records. On the thread of Step.
  uint64_t bytes() const;

 private:
  struct Held {
    uint8_t tiers = 0;   // Bit n: TierKind n.
    uint32_t round = 0;  // The round in which it was seen last.
  };
  struct Followed {
    uint32_t block_tokens = 0;
    absl::flat_hash_map<WaymarkHash, Held> waymarks;
  };

  void Handle(const CacheEvent& event);
  void Tell(WaymarkHash hash, const Held& before, const Held& now);
  // Waymarks that a new snapshot did not have are gone.
  void EndSnapshot();
  // nullptr: nobody knows the namespace any more.
  Followed* Find(const Digest& fingerprint);

  CacheEngine& engine_;
  Announcer& announcer_;
  const Clock& clock_;
  std::unique_ptr<EventQueue> queue_;
  absl::flat_hash_map<Digest, Followed> namespaces_;
  uint32_t round_ = 0;
  uint64_t restarts_ = 0;
};

}  // namespace cairn::cache
