#pragma once
// Tasks that run at a given time, for deadlines that nobody waits for on a thread.

#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"

namespace cairn {

// Thread-safe. Tasks must be short: all of them share one thread.
class Timers {
 public:
  using Id = uint64_t;

  // `clock` must outlive it. Until Start is called, the owner runs the tasks with RunDue.
  explicit Timers(const Clock* clock) : clock_(clock) {}
  ~Timers();  // Stop(). Tasks that have not run are dropped.
  Timers(const Timers&) = delete;
  Timers& operator=(const Timers&) = delete;

  // Runs `task` once, when the clock has reached `when`.
  Id At(TimePoint when, std::function<void()> task);
  // True: the task will never run. False: it has run, or runs now.
  bool Cancel(Id id);

  // Runs the tasks whose time has come, earliest first, on this thread. Returns how many ran.
  size_t RunDue();
  size_t pending() const;
  // When the earliest task is due. TimePoint::max(): there is none.
  TimePoint next() const;

  // Runs the tasks on a thread of its own. REQUIRES: the clock is the steady clock.
  void Start();
  // Ends that thread. Idempotent. A task must not call it.
  void Stop();

 private:
  using Key = std::pair<TimePoint, Id>;
  void Run();

  const Clock* const clock_;
  mutable Mutex mu_;
  CondVar wake_;
  std::map<Key, std::function<void()>> tasks_ ABSL_GUARDED_BY(mu_);
  std::map<Id, TimePoint> times_ ABSL_GUARDED_BY(mu_);
  Id next_id_ ABSL_GUARDED_BY(mu_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace cairn
