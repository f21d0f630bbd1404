#pragma once
// Callbacks of calls to members, which run in any case: links that go away destroy those that they
// have not run.

#include <functional>
#include <utility>

#include "cairn/common/status.h"
#include "common/concurrency/runs_once.h"

namespace cairn::cache {

// As RunsOnce. A callback that is destroyed without a call runs with CANCELLED. `Answer`: what the
// function gets.
template <typename Answer, typename Function>
std::function<void(Answer)> CalledAlways(Function function) {
  return RunsOnce<Answer>(std::move(function), [] {
    return Errorf(StatusCode::kCancelled, "the link to the member has ended");
  });
}

}  // namespace cairn::cache
