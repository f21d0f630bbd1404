#pragma once
// A thread for calls that may never return.

#include <memory>

#include "common/concurrency/executor.h"

namespace cairn::link {

// One thread that runs tasks in order; at most kMostTasks wait. Thread-safe. Its destruction drops
// the tasks that wait, and never waits itself: a task that runs goes on, and the thread ends behind
// it. So a task owns all that it uses.
class LoneThread final : public Executor {
 public:
  static constexpr size_t kMostTasks = 64;
  explicit LoneThread(const char* name);  // At most 15 characters.
  ~LoneThread() override;
  Status Post(std::function<void()> task) override;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace cairn::link
