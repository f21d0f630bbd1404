#pragma once
// Bounds the bytes that many connections hold together, and shares them: one gets more only if it
// holds no more than is left for others, so n readers that take nothing leave 1/(n+1) of the bytes.

#include <atomic>
#include <cstdint>

namespace cairn::http {

// Thread-safe, without locks.
class ByteBudget {
 public:
  explicit ByteBudget(uint64_t capacity) : capacity_(capacity) {}

  // For a party that holds `held` bytes already. False: others need the room.
  bool Take(uint64_t held, uint64_t bytes) {
    uint64_t used = used_.load(std::memory_order_relaxed);
    do {
      const uint64_t free = capacity_ - used;
      if (bytes > free || held > free - bytes) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }
  void GiveBack(uint64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  uint64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  const uint64_t capacity_;
  std::atomic<uint64_t> used_{0};
};

}  // namespace cairn::http
