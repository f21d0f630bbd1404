#pragma once
// Callbacks that run in any case: links that go away destroy those that they have not run.

#include <functional>
#include <memory>
#include <utility>

#include "cairn/common/status.h"

namespace cairn::cache {

// Calls a function once: with a value, or with CANCELLED when it is destroyed without one. One
// thread at a time.
template <typename Function>
class CalledOnce {
 public:
  explicit CalledOnce(Function function) : function_(std::move(function)) {}
  ~CalledOnce() {
    if (!called_) function_(Errorf(StatusCode::kCancelled, "the link to the member has ended"));
  }
  CalledOnce(const CalledOnce&) = delete;
  CalledOnce& operator=(const CalledOnce&) = delete;
  template <typename T>
  void Call(T value) {
    called_ = true;
    function_(std::move(value));
  }

 private:
  Function function_;
  bool called_ = false;
};

// In a form that std::function takes. `Answer`: what the function gets.
template <typename Answer, typename Function>
std::function<void(Answer)> CalledAlways(Function function) {
  auto once = std::make_shared<CalledOnce<Function>>(std::move(function));
  return [once](Answer value) { once->Call(std::move(value)); };
}

}  // namespace cairn::cache
