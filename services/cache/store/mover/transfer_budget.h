#pragma once
// Bounds the buffers of fetches that read from disk, or from a source, without the host tier.
// Thread-safe.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class TransferBudget {
 public:
  // Bytes that go back when it is destroyed.
  class Share {
   public:
    Share(TransferBudget* budget, uint64_t reader, uint64_t bytes)
        : budget_(budget), reader_(reader), bytes_(bytes) {}
    ~Share() { budget_->Return(reader_, bytes_); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

   private:
    TransferBudget* const budget_;
    const uint64_t reader_;
    const uint64_t bytes_;
  };

  TransferBudget(uint64_t capacity, Progress* progress)
      : capacity_(capacity), progress_(*progress) {}

  // nullptr: others use too much now, or `reader` does. A block that is larger than the whole
  // budget passes when nobody else reads, because otherwise it could never be read. `reader`: the
  // session that the bytes are for, which gets half of the budget, or one block. 0: nobody.
  std::shared_ptr<Share> TryTake(uint64_t bytes, uint64_t reader = 0) {
    bytes = std::min(bytes, capacity_);
    MutexLock lock(mu_);
    const bool full = used_ + bytes > capacity_;
    if (reader != 0) {
      // The bytes that it has already keep it from more, whatever others have.
      const auto it = of_reader_.find(reader);
      if (it != of_reader_.end() && it->second + bytes > capacity_ / 2) return nullptr;
    }
    short_of_room_ = full;
    if (full) return nullptr;
    used_ += bytes;
    if (reader != 0) of_reader_[reader] += bytes;
    return std::make_shared<Share>(this, reader, bytes);
  }
  // The last read that wanted room did not get it, and none came back since.
  bool short_of_room() const {
    MutexLock lock(mu_);
    return short_of_room_;
  }
  uint64_t capacity() const { return capacity_; }
  uint64_t used() const {
    MutexLock lock(mu_);
    return used_;
  }

 private:
  void Return(uint64_t reader, uint64_t bytes) {
    {
      MutexLock lock(mu_);
      used_ -= bytes;
      if (const auto it = of_reader_.find(reader); it != of_reader_.end()) {
        it->second -= bytes;
        if (it->second == 0) of_reader_.erase(it);
      }
      short_of_room_ = false;  // Those that wait ask again.
    }
    progress_.Notify();
  }

  const uint64_t capacity_;
  Progress& progress_;
  mutable Mutex mu_;
  uint64_t used_ ABSL_GUARDED_BY(mu_) = 0;
  absl::flat_hash_map<uint64_t, uint64_t> of_reader_
      ABSL_GUARDED_BY(mu_);  // The bytes of readers that have any.
  bool short_of_room_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::cache
