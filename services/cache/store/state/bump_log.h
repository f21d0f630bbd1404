#pragma once
// Which bumps this node knows (../peer/peer_messages.h), of each namespace and of all.
//
// clang-format off
//   oldest                                                        newest
//   ├── retired: known, but told to nobody ──┼── told: at most kTold ──┤
// clang-format on
//
// Members forget in the order in which bumps reached them, which differs a little from member to
// member. Without the retired ones, a member would take over again what it just forgot, and would
// hide blocks for it each time.
//
// Thread-safe.

#include <deque>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/concurrency/mutex.h"
#include "services/cache/store/state/bump.h"
#include "services/cache/store/state/memory_account.h"

namespace cairn::cache {

class BumpLog {
 public:
  static constexpr size_t kTold = 65'536;
  static constexpr size_t kKept = 2 * kTold;
  // Memory of one bump with its places in the tables, at most.
  static constexpr uint64_t kBumpBytes = 192;

  // `memory` must outlive it.
  explicit BumpLog(MemoryAccount* memory) : memory_(*memory) {}

  // As PeerEngine's. For a namespace under a Change: the value that the change was given.
  uint64_t DigestOf(const Digest& fingerprint) const;
  uint64_t digest() const;
  BumpPage Page(uint64_t begin, size_t most) const;

  // Those that are not known, each once, in their order.
  std::vector<Bump> UnknownOf(std::span<const Bump> bumps) const;
  // The charge for `bumps` more, until they are added. RESOURCE_EXHAUSTED: there is no memory.
  Result<MemoryCharge> ChargeFor(size_t bumps) const {
    return memory_.Charge(MemoryItem::kNamespaces, bumps * kBumpBytes);
  }
  // Never refused: may exceed the bound of the memory. Known ones are ignored.
  void Add(std::span<const Bump> bumps);

  // While one exists, the namespaces of its bumps have blocks of before or of after the bumps, and
  // nobody can tell which. So nobody may serve them, or copy into them. One at a time.
  class Change {
   public:
    // `digest`: no other member has it.
    Change(BumpLog* log, std::span<const Bump> bumps, uint64_t digest);
    ~Change();
    Change(const Change&) = delete;
    Change& operator=(const Change&) = delete;

   private:
    BumpLog& log_;
  };

 private:
  // The same whatever the order.
  struct Sum {
    uint64_t hashes = 0;
    uint64_t count = 0;
    uint64_t Value() const;
  };

  void Count(const Bump& bump) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountOut(const Bump& bump) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  size_t retired() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return order_.size() - std::min(order_.size(), kTold);
  }

  MemoryAccount& memory_;
  mutable Mutex mu_;
  std::deque<Bump> order_ ABSL_GUARDED_BY(mu_);                 // By arrival.
  absl::flat_hash_set<uint64_t> known_ ABSL_GUARDED_BY(mu_);    // Keyed hashes of all in `order_`.
  absl::flat_hash_map<Digest, Sum> sums_ ABSL_GUARDED_BY(mu_);  // The sums of those that are told.
  Sum all_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_set<Digest> changing_ ABSL_GUARDED_BY(mu_);
  uint64_t changing_digest_ ABSL_GUARDED_BY(mu_) = 0;
  MemoryCharge charge_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
