#pragma once
// Some of the slices of a lease's blocks: a bit for each. Two sets are of use:
//
// - Those that were compared with their writers' hashes, in the host tier and under this lease. A
//   fetch of rows needs that: the hash covers a whole slice, and hashing it again for each few rows
//   would cost more than all else. It is good to remember, since nobody but this process can write
//   there. A copy of a leased block may leave the host tier and come back; what comes in is
//   verified whole before anybody sees it. Parts in lent segments, which writers can still change,
//   are never remembered.
// - Those that were read from a slower tier without the rest of their block. One that is read a
//   second time says that the block is worth its place in host.
//
// Thread-safe.

#include <cstdint>
#include <vector>

#include "common/concurrency/mutex.h"
#include "services/cache/store/state/memory_account.h"

namespace cairn::cache {

class SliceSet {
 public:
  bool Has(uint32_t block, uint32_t layer) const {
    MutexLock lock(mu_);
    const uint64_t bit = uint64_t{block} * layers_ + layer;
    return layer < layers_ && bit / 64 < words_.size() &&
           ((words_[bit / 64] >> (bit % 64)) & 1) != 0;
  }
  // `blocks` and `layers`: of the lease, the same each time. Remembers nothing if the account
  // refuses the memory, a bit for each slice.
  void Add(uint32_t block, uint32_t layer, uint32_t blocks, uint32_t layers,
           MemoryAccount* account) {
    MutexLock lock(mu_);
    if (words_.empty()) {
      const uint64_t words = (uint64_t{blocks} * layers + 63) / 64;
      Result<MemoryCharge> charge = account->Charge(MemoryItem::kLeases, words * sizeof(uint64_t));
      if (!charge.ok()) return;
      memory_ = *std::move(charge);
      words_.resize(words);
      layers_ = layers;
    }
    const uint64_t bit = uint64_t{block} * layers_ + layer;
    if (bit / 64 < words_.size()) words_[bit / 64] |= uint64_t{1} << (bit % 64);
  }
  // From now on, no slice of the block is in the set.
  void Forget(uint32_t block) {
    MutexLock lock(mu_);
    for (uint64_t bit = uint64_t{block} * layers_; bit < (uint64_t{block} + 1) * layers_; ++bit) {
      if (bit / 64 < words_.size()) words_[bit / 64] &= ~(uint64_t{1} << (bit % 64));
    }
  }

 private:
  mutable Mutex mu_;
  uint32_t layers_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<uint64_t> words_ ABSL_GUARDED_BY(mu_);
  MemoryCharge memory_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
