#pragma once
// How often a kind of access to the device ended, and how long these took together.

#include <atomic>
#include <cstdint>

#include "cairn/common/clock.h"

namespace cairn::cache::disk {

struct IoTimeStats {
  uint64_t ended = 0;
  double seconds = 0;
};

// Thread-safe.
class IoTime {
 public:
  // One has ended that took so long. It may have failed.
  void Add(Duration took) {
    ended_.fetch_add(1, std::memory_order_relaxed);
    nanoseconds_.fetch_add(static_cast<uint64_t>(took.count()), std::memory_order_relaxed);
  }
  IoTimeStats Get() const {
    return {.ended = ended_.load(std::memory_order_relaxed),
            .seconds = static_cast<double>(nanoseconds_.load(std::memory_order_relaxed)) / 1e9};
  }

 private:
  std::atomic<uint64_t> ended_{0};
  std::atomic<uint64_t> nanoseconds_{0};
};

}  // namespace cairn::cache::disk
