#pragma once
// Callbacks for somebody who may also destroy them unused: a tier that goes away, an executor that
// ends. Without this, whoever waits for the callback would wait forever.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "cairn/common/status.h"

namespace cairn {

// A callback that calls `run(value)` exactly once: with the value that the callback is called
// with, or with `dropped()` when its last copy is destroyed without a call. Later calls have no
// effect. The objects that `run` holds are destroyed before the call returns, even if copies of the
// callback stay. The copies may be called and destroyed on any threads.
template <typename Value = Status, typename Run, typename Dropped>
std::function<void(Value)> RunsOnce(Run run, Dropped dropped) {
  class Once {
   public:
    Once(Run run_in, Dropped dropped_in)
        : run_(std::move(run_in)), dropped_(std::move(dropped_in)) {}
    ~Once() {
      if (!over_.load()) End(dropped_());
    }
    Once(const Once&) = delete;
    Once& operator=(const Once&) = delete;

    void End(Value value) {
      if (over_.exchange(true)) return;
      auto call = std::exchange(run_, std::nullopt);
      (*call)(std::move(value));
    }

   private:
    std::optional<Run> run_;
    Dropped dropped_;
    std::atomic<bool> over_{false};
  };
  return [once = std::make_shared<Once>(std::move(run), std::move(dropped))](Value value) {
    once->End(std::move(value));
  };
}

}  // namespace cairn
