#pragma once
// Requests that wait for room at the device, and the wake-up of the one thread that serves them.
// Used by the backends with an event loop.

#include <cstdint>

#include "common/concurrency/mutex.h"
#include "services/cache/store/tier/disk/io_backend.h"

namespace cairn::cache::disk {

// Intrusive: queueing allocates nothing. Thread-safe.
class RequestLine {
 public:
  // An eventfd; -1 when none could be made.
  RequestLine();
  ~RequestLine();
  int event_fd() const { return event_fd_; }

  void Push(IoRequest* request);
  // Nullptr when nothing waits.
  IoRequest* Pop();
  // The serving thread calls it before it sleeps until `event_fd` is readable or a completion
  // comes. `takes`: it would start a request now. False: it must not sleep, because a request waits
  // for it.
  bool MaySleep(bool takes);
  void Awake();
  // The serving thread ends when nothing waits or runs.
  void Stop();
  bool stopping() const;

 private:
  void Wake();

  const int event_fd_;
  mutable Mutex mu_;
  IoRequest* first_ ABSL_GUARDED_BY(mu_) = nullptr;
  IoRequest* last_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool asleep_ ABSL_GUARDED_BY(mu_) = false;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::cache::disk
