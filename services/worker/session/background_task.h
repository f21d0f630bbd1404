#pragma once
// A piece of work next to the engine's thread, which asks whether it is done and does not wait: a
// node that takes long must not hold up the tokens of other requests.

#include <functional>
#include <memory>

#include "cairn/common/clock.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/wakeup.h"

namespace cairn::worker {

// The engine's thread makes it, asks and destroys it.
class BackgroundTask {
 public:
  // `work` runs once, on the executor; here, if that refuses it. All must outlive this, and so must
  // everything that `work` uses.
  BackgroundTask(Executor& executor, const Clock& clock, Wakeup& wakeup,
                 const std::function<void()>& work);
  ~BackgroundTask();  // Waits for its end.
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // The wakeup is notified when it is.
  bool done() const;

 private:
  struct State;
  const Clock& clock_;
  const std::shared_ptr<State> state_;
};

}  // namespace cairn::worker
