#pragma once
// The lines on their way to stderr. A reader of stderr that reads nothing costs lines, never time
// or memory of the threads that log.

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"

namespace cairn::log {

// Thread-safe. One thread takes.
class LineQueue {
 public:
  explicit LineQueue(size_t max_bytes) : max_bytes_(max_bytes) {}

  // Never waits. A line for which there is no room is dropped and counted.
  void Push(std::string_view line) {
    {
      MutexLock lock(mu_);
      if (waiting_.size() + line.size() > max_bytes_) {
        ++dropped_since_;
        dropped_.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      waiting_ += line;
    }
    changed_.NotifyAll();
  }

  struct Batch {
    std::string lines;
    uint64_t dropped = 0;  // Lines after these, for which there was no room.
  };
  // All that waits. Waits until there is something. The lines count as written with the next call.
  Batch Take() {
    MutexLock lock(mu_);
    writing_ = false;
    changed_.NotifyAll();
    changed_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return !waiting_.empty() || dropped_since_ > 0;
    });
    writing_ = true;
    Batch batch;
    batch.lines.swap(waiting_);
    std::swap(batch.dropped, dropped_since_);
    return batch;
  }
  // Waits until all lines are written. False: `deadline` came first.
  bool WaitWritten(TimePoint deadline) {
    MutexLock lock(mu_);
    return changed_.WaitUntil(mu_, deadline, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return waiting_.empty() && dropped_since_ == 0 && !writing_;
    });
  }

  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

 private:
  const size_t max_bytes_;
  Mutex mu_;
  CondVar changed_;
  std::string waiting_ ABSL_GUARDED_BY(mu_);
  uint64_t dropped_since_ ABSL_GUARDED_BY(mu_) = 0;  // Since the last Take.
  bool writing_ ABSL_GUARDED_BY(mu_) = false;        // The lines that were taken are being written.
  std::atomic<uint64_t> dropped_{0};
};

}  // namespace cairn::log
