#pragma once
// Which members can give the blocks that were located lately.

#include <algorithm>
#include <array>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/concurrency/mutex.h"
#include "common/hash/keyed_hash.h"
#include "services/cache/cluster/directory/waymarks.h"

namespace cairn::cache {

// Members to read from, best first. Shared by the blocks of a run.
using ReadPlan = std::shared_ptr<const std::vector<std::string>>;

// Remembers at least half of `capacity` blocks, and forgets what was located first. Thread-safe.
class PlanTable {
 public:
  explicit PlanTable(size_t capacity) : half_(std::max<size_t>(1, capacity / 2)) {}

  void Put(const Digest& fingerprint, std::span<const BlockKey> keys, const ReadPlan& plan) {
    MutexLock lock(mu_);
    for (const BlockKey& key : keys) {
      if (recent_.size() >= half_) old_ = std::exchange(recent_, {});
      recent_.insert_or_assign(HashForWaymark(fingerprint, key), plan);
    }
  }
  // Of the tables, when both are as full as they get: so much for each block of `capacity`.
  static constexpr uint64_t kMostBytesOfABlock = 57;
  uint64_t bytes() const {
    MutexLock lock(mu_);
    const auto one = [](const auto& map) {
      return map.capacity() * (sizeof(typename std::decay_t<decltype(map)>::value_type) + 1);
    };
    return one(recent_) + one(old_);
  }
  // nullptr: nobody is known.
  ReadPlan Find(const Digest& fingerprint, const BlockKey& key) const {
    const WaymarkHash hash = HashForWaymark(fingerprint, key);
    MutexLock lock(mu_);
    for (const auto* const map : {&recent_, &old_}) {
      const auto it = map->find(hash);
      if (it != map->end()) return it->second;
    }
    return nullptr;
  }

 private:
  const size_t half_;
  mutable Mutex mu_;
  absl::flat_hash_map<WaymarkHash, ReadPlan> recent_ ABSL_GUARDED_BY(mu_), old_
      ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
