#pragma once
// Where the rows of a context come from: the seam between a reader and the far tier.
//
// A gather brings rows of one layer into memory of the caller, perhaps after the call. Whoever asks
// never has to wait for it: the reader goes on without rows that are late.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"

namespace cairn::worker {

// Rows of one layer. `k` and `v` are [rows][row_bytes] in binary16, as in pages (kv/kv_pool.h).
struct RowRequest {
  struct Head {
    int head = 0;               // KV head.
    std::vector<int32_t> rows;  // Positions in the context. Ascending, at least one.
    std::byte* k = nullptr;
    std::byte* v = nullptr;
  };
  int layer = 0;
  std::vector<Head> heads;
};

// One gather. Thread-safe.
class RowGather {
 public:
  enum class State : uint8_t {
    kUnderWay,
    kHere,  // All rows are in the caller's memory, verified.
    kLost,  // They will not come. The bytes in the caller's memory mean nothing.
  };
  State state() const {
    MutexLock lock(mu_);
    return state_;
  }
  // At most until `deadline`.
  State Wait(const Clock& clock, TimePoint deadline) {
    MutexLock lock(mu_);
    over_.WaitUntil(mu_, clock, deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return state_ != State::kUnderWay;
    });
    return state_;
  }
  // The source's: nothing writes to the caller's memory after it.
  void Finish(bool here) {
    MutexLock lock(mu_);
    state_ = here ? State::kHere : State::kLost;
    over_.NotifyAll();
  }

 private:
  mutable Mutex mu_;
  CondVar over_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kUnderWay;
};

// The rows of one context. One thread asks.
class RowSource {
 public:
  // Waits until nothing writes to callers' memory any more.
  virtual ~RowSource() = default;

  // Starts to gather, and may have ended when it returns. Never waits for a node or a device. The
  // memory of the request stays valid until the gather is no longer under way, or the source is
  // destroyed. REQUIRES: rows, heads and layer are of the context.
  virtual std::shared_ptr<RowGather> Gather(RowRequest request) = 0;
};

}  // namespace cairn::worker
