#pragma once
// The thread that makes the steps of a client.

#include <thread>

#include "cairn/common/clock.h"

namespace cairn::client {

// Makes the steps of `stepped` until it is destroyed. Step() returns the time of the next thing to
// do, WaitForWork(until) waits for that and is false after Stop(). `stepped` must outlive the
// thread. Thread-compatible.
template <typename Stepped>
class StepThread {
 public:
  explicit StepThread(Stepped* stepped) : stepped_(stepped) {
    thread_ = std::thread([this] {
      TimePoint next;
      do {
        next = stepped_->Step();
      } while (stepped_->WaitForWork(next));
    });
  }
  ~StepThread() {
    stepped_->Stop();
    thread_.join();
  }
  StepThread(const StepThread&) = delete;
  StepThread& operator=(const StepThread&) = delete;

 private:
  Stepped* const stepped_;
  std::thread thread_;
};

}  // namespace cairn::client
