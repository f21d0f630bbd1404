#pragma once
// Touches the pages of an arena from a background thread, so that no request pays for fresh memory:
// first all of it, and then segments that get new memory. Thread-safe.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <thread>
#include <vector>

#include "common/concurrency/mutex.h"

namespace cairn::cache {

class Prefault {
 public:
  struct Segment {
    std::span<std::byte> memory;  // Stays mapped; what is mapped there may change.
    int fd = -1;                  // Valid until first_over().
  };

  Prefault() = default;
  ~Prefault() { Stop(); }
  Prefault(const Prefault&) = delete;
  Prefault& operator=(const Prefault&) = delete;

  // Once, before all others. Without it, nothing is touched.
  void Start(std::vector<Segment> segments);
  void Stop();
  // The segment has new memory. No effect while many others wait.
  void Again(uint32_t segment);

  // All segments were touched once, or that was given up. True before Start.
  bool first_over() const { return first_over_.load(std::memory_order_acquire); }
  // Blocks until first_over().
  void WaitForFirst();
  // That were touched at first.
  uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  void Run();
  void TouchAll();

  std::vector<Segment> segments_;  // Constant after Start.
  std::atomic<uint64_t> bytes_{0};
  std::atomic<bool> stop_{false};       // Written under mu_ too, but for an error.
  std::atomic<bool> first_over_{true};  // Written under mu_.
  Mutex mu_;
  CondVar over_;
  CondVar wake_;
  std::deque<uint32_t> wanted_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace cairn::cache
