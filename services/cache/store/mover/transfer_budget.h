#pragma once
// Bounds the buffers of fetches that read from disk, or from a source, without the host tier.
// Thread-safe.

#include <algorithm>
#include <cstdint>
#include <memory>

#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class TransferBudget {
 public:
  // Bytes that go back when it is destroyed.
  class Share {
   public:
    Share(TransferBudget* budget, uint64_t bytes) : budget_(budget), bytes_(bytes) {}
    ~Share() { budget_->Return(bytes_); }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

   private:
    TransferBudget* const budget_;
    const uint64_t bytes_;
  };

  TransferBudget(uint64_t capacity, Progress* progress)
      : capacity_(capacity), progress_(*progress) {}

  // nullptr: others use too much now. A block that is larger than the whole budget passes when
  // nobody else reads, because otherwise it could never be read.
  std::shared_ptr<Share> TryTake(uint64_t bytes) {
    bytes = std::min(bytes, capacity_);
    MutexLock lock(mu_);
    short_of_room_ = used_ + bytes > capacity_;
    if (short_of_room_) return nullptr;
    used_ += bytes;
    return std::make_shared<Share>(this, bytes);
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
  void Return(uint64_t bytes) {
    {
      MutexLock lock(mu_);
      used_ -= bytes;
      short_of_room_ = false;  // Those that wait ask again.
    }
    progress_.Notify();
  }

  const uint64_t capacity_;
  Progress& progress_;
  mutable Mutex mu_;
  uint64_t used_ ABSL_GUARDED_BY(mu_) = 0;
  bool short_of_room_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::cache
