#pragma once
// Tells owners which waymarks this node holds, and follows as owners change.

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/concurrency/mutex.h"
#include "services/cache/cluster/directory/announcement.h"
#include "services/cache/cluster/directory/owners.h"

namespace cairn::cache {

// A stream per owner. Changes wait in the stream until Next takes them, so that the sender can send
// them at its own pace. A stream with too much that waits begins again, which is cheaper.
//
// Thread-safe. Its work per call is bounded by a shard (1/256 of the waymarks), but for SetOwners.
class Announcer {
 public:
  struct Options {
    size_t max_waiting = 65536;  // Changes of one stream.
  };
  explicit Announcer(Options options) : options_(options), shards_(new Shards) {}

  // The node holds it from now on, or holds it in another tier.
  void Stored(AnnouncedWaymark waymark);
  void Gone(WaymarkHash hash);

  // The members changed. Streams of owners that left are dropped. Those that gain or lose waymarks
  // are told so by and by: call Step until it returns true.
  void SetOwners(std::shared_ptr<const OwnerMap> owners);
  // A part of the way to the new owners. True: there is nothing to do.
  bool Step();

  // Members whose streams have something to tell.
  std::vector<std::string> Waiting() const;
  // The next message to a member; nullopt: nothing to tell.
  std::optional<Announcement> Next(const std::string& owner);
  // The member may have lost what it was told: all of it is told again.
  void Restart(const std::string& owner);
  // The last message that was taken for a member. 0: none since its stream began.
  uint64_t SequenceOf(const std::string& owner) const;

  uint64_t waymarks() const;
  uint64_t bytes() const;

 private:
  static constexpr size_t kShards = 256;
  using Shard = absl::flat_hash_map<WaymarkHash, TierClass>;
  using Shards = std::array<Shard, kShards>;
  enum class Change : uint8_t { kAdd, kTier, kRemove };
  struct Stream {
    uint64_t sequence = 0;
    bool complete = false;
    // Shards below it were told, or lie in `waiting`. kShards: all.
    size_t next_shard = 0;
    absl::flat_hash_map<WaymarkHash, Change> waiting;
    uint64_t count = 0, check = 0;
  };

  static size_t ShardOf(WaymarkHash hash) { return hash >> 56; }
  // The owners of a shard's waymarks while owners change.
  const OwnerMap& OwnersIn(size_t shard) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return shard < walked_ ? *owners_ : *before_;
  }
  void Tell(WaymarkHash hash, Change change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Tell(const std::string& owner, WaymarkHash hash, Change change)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasNews(const Stream& stream) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeWaiting(Stream& stream, Announcement* message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The first messages of a stream about a shard. REQUIRES: owners do not change.
  void TakeShard(const std::string& owner, Stream& stream, Announcement* message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginWalk(std::shared_ptr<const OwnerMap> owners) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool walking() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return walked_ < kShards; }

  const Options options_;
  mutable Mutex mu_;
  const std::unique_ptr<Shards> shards_ ABSL_PT_GUARDED_BY(mu_);
  std::shared_ptr<const OwnerMap> owners_ ABSL_GUARDED_BY(mu_) = std::make_shared<OwnerMap>();
  std::shared_ptr<const OwnerMap> before_ ABSL_GUARDED_BY(mu_) = owners_;
  std::shared_ptr<const OwnerMap> next_ ABSL_GUARDED_BY(mu_);  // After the walk that is under way.
  size_t walked_ ABSL_GUARDED_BY(mu_) = kShards;
  std::map<std::string, Stream> streams_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
