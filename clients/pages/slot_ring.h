#pragma once
// Slots of one buffer that are taken and given back in any order.

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"

namespace cairn::pages {

// Thread-safe.
class SlotRing {
 public:
  explicit SlotRing(uint32_t slots) : slots_(slots) {
    for (uint32_t slot = 0; slot < slots; ++slot) free_.insert(free_.end(), slot);
  }

  uint32_t slots() const { return slots_; }
  // At most `most`, the lowest first, so that neighbours are mostly copied together. Empty: none is
  // free.
  std::vector<uint32_t> Take(size_t most) {
    MutexLock lock(mu_);
    return TakeLocked(most);
  }
  // Waits until one is free, or until `until`, or until the ring is closed.
  std::vector<uint32_t> Await(size_t most, TimePoint until) {
    MutexLock lock(mu_);
    changed_.WaitUntil(mu_, until, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return !free_.empty() || closed_;
    });
    return closed_ ? std::vector<uint32_t>() : TakeLocked(most);
  }
  void GiveBack(std::span<const uint32_t> slots) {
    {
      MutexLock lock(mu_);
      free_.insert(slots.begin(), slots.end());
    }
    changed_.NotifyAll();
  }
  // Nobody waits from now on.
  void Close() {
    {
      MutexLock lock(mu_);
      closed_ = true;
    }
    changed_.NotifyAll();
  }

 private:
  std::vector<uint32_t> TakeLocked(size_t most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    std::vector<uint32_t> taken;
    while (taken.size() < most && !free_.empty()) {
      taken.push_back(free_.extract(free_.begin()).value());
    }
    return taken;
  }

  const uint32_t slots_;
  Mutex mu_;
  CondVar changed_;
  std::set<uint32_t> free_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::pages
