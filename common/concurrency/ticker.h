#pragma once
// Calls a function at a fixed interval from its own thread.

#include <functional>
#include <thread>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"

namespace cairn {

class Ticker {
 public:
  Ticker(Duration interval, std::function<void()> tick) {
    thread_ = std::thread([this, interval, tick = std::move(tick)] {
      TimePoint next = std::chrono::steady_clock::now();
      for (;;) {
        tick();
        // After a stall (a stopped process) it continues from now and does not repeat missed ticks.
        next = std::max(next + interval, std::chrono::steady_clock::now());
        MutexLock lock(mu_);
        const bool stop = wake_.WaitUntil(
            mu_, next, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; });
        if (stop) return;
      }
    });
  }
  ~Ticker() {
    {
      MutexLock lock(mu_);
      stopping_ = true;
    }
    wake_.NotifyAll();
    thread_.join();
  }

 private:
  Mutex mu_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace cairn
