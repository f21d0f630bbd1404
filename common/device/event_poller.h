#pragma once
// Tells when events have happened, without a thread that waits for the device: one thread asks for
// all events in turn.
//
// EventPoller is the core, whose Step a test or a simulation calls. PollingThread is the thread
// that calls it: it sleeps as long as nothing is watched.

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "common/device/device.h"

namespace cairn::device {

// Thread-safe.
class EventPoller {
 public:
  // OK: the event has happened. Else: the device is lost, or the work failed. It must not block.
  using Done = std::function<void(Status)>;

  // `done` runs once, in a later Step, or in Abandon.
  void Watch(Event event, Done done);
  // Asks for each event once, and runs what has happened, oldest first. Returns how many ran.
  size_t Step();
  bool idle() const;
  // Runs all that is left with `why`. For the end.
  void Abandon(const Status& why);

  // Called when the first event comes after none were left.
  void SetWake(std::function<void()> wake) { wake_ = std::move(wake); }

 private:
  struct Watched {
    Event event;
    Done done;
  };

  std::function<void()> wake_;  // Constant once events come.
  mutable Mutex mu_;
  std::vector<Watched> watched_ ABSL_GUARDED_BY(mu_);
};

class PollingThread {
 public:
  // Steps the poller every `interval` while something is watched.
  PollingThread(EventPoller* poller, Duration interval);
  ~PollingThread();

 private:
  void Run();

  EventPoller& poller_;
  const Duration interval_;
  Mutex mu_;
  CondVar wake_;
  bool wanted_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace cairn::device
