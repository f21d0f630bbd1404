#pragma once
// Which members can give the blocks that were located lately.

#include <algorithm>
#include <array>
#include <atomic>
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

// Remembers at least half of `capacity` blocks, or fewer if each has a plan of its own, and forgets
// what was located first. Thread-safe.
class PlanTable {
 public:
  explicit PlanTable(size_t capacity) : half_(std::max<size_t>(1, capacity / 2)) {}

  void Put(const Digest& fingerprint, std::span<const BlockKey> keys,
           std::vector<std::string> members) {
    const ReadPlan plan = Counted(std::move(members));
    Map dropped;  // Not under the lock.
    MutexLock lock(mu_);
    if (*plan_bytes_ > old_plans_ + half_ * kMostPlanBytesOfABlock) dropped = Turn();
    for (const BlockKey& key : keys) {
      if (recent_.size() >= half_) dropped = Turn();
      recent_.insert_or_assign(HashForWaymark(fingerprint, key), plan);
    }
  }
  // The most bytes of the tables and the plans, for each block of `capacity`, when both are as full
  // as they get.
  static constexpr uint64_t kMostPlanBytesOfABlock = 16;
  static constexpr uint64_t kMostBytesOfABlock = 57 + kMostPlanBytesOfABlock;
  uint64_t bytes() const {
    MutexLock lock(mu_);
    const auto one = [](const auto& map) {
      return map.capacity() * (sizeof(typename std::decay_t<decltype(map)>::value_type) + 1);
    };
    return one(recent_) + one(old_) + *plan_bytes_;
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
  using Map = absl::flat_hash_map<WaymarkHash, ReadPlan>;

  // Its bytes count for as long as anybody holds it.
  ReadPlan Counted(std::vector<std::string> members) const {
    uint64_t bytes = sizeof(std::vector<std::string>) + members.capacity() * sizeof(std::string);
    for (const std::string& id : members) bytes += id.capacity();
    *plan_bytes_ += bytes;
    return ReadPlan(new std::vector<std::string>(std::move(members)),
                    [total = plan_bytes_, bytes](const std::vector<std::string>* plan) {
                      delete plan;
                      *total -= bytes;
                    });
  }
  // The recent plans become the old ones. Returns what was old.
  Map Turn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const uint64_t all = *plan_bytes_;
    old_plans_ = all - std::min(all, old_plans_);
    return std::exchange(old_, std::exchange(recent_, {}));
  }

  const size_t half_;
  const std::shared_ptr<std::atomic<uint64_t>> plan_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  mutable Mutex mu_;
  Map recent_ ABSL_GUARDED_BY(mu_), old_ ABSL_GUARDED_BY(mu_);
  uint64_t old_plans_ ABSL_GUARDED_BY(mu_) = 0;  // Bytes of plans in `old_`, when it became old.
};

}  // namespace cairn::cache
