#pragma once
// Long bodies are read as JSON on threads of their own, fairly between tenants, and the shortest of
// a tenant first. The threads of connections go on meanwhile: 8 MB cost a tenth of a second and
// more.
//
// A body is read in one piece, so at most as many JSON trees exist as there are threads.

#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/executor.h"
#include "common/tenants/fair_queue.h"

namespace cairn::router {

// Thread-safe. Ends after what was posted.
class BodyReads {
 public:
  // Shorter ones take less time than to wake another thread does.
  static constexpr uint64_t kShort = 64 << 10;

  // `options` but for the size of pieces. `executor` and `clock` must outlive it.
  BodyReads(FairQueue::Options options, Executor* executor, const Clock* clock)
      : queue_(std::move(options), executor, clock) {}

  // Most memory that JSON of so many bytes takes while it is read.
  static uint64_t MostBytes(uint64_t body);

  // Calls `read` for a body of so many bytes: here if it is short, else on another thread.
  // RESOURCE_EXHAUSTED, UNAVAILABLE: it is not called, the executor is full or has stopped.
  Status Post(std::string_view tenant, uint64_t bytes, std::function<void()> read);

  // What those that are being read take.
  uint64_t used_bytes() const { return used_.load(std::memory_order_relaxed); }
  // Those that wait or are being read.
  FairQueue::Numbers numbers() const { return queue_.numbers(); }

 private:
  class Reading;
  FairQueue queue_;
  std::atomic<uint64_t> used_{0};
};

}  // namespace cairn::router
