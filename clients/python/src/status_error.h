#pragma once
// Carries failed statuses to Python. C++ code throws them, and the module's translator turns each
// into the Python exception for its code.

#include <exception>
#include <string>
#include <utility>

#include "cairn/common/status.h"

namespace cairn::python {

// Immutable.
class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)), text_(ToString(status_)) {}
  const char* what() const noexcept override { return text_.c_str(); }
  const Status& status() const { return status_; }

 private:
  Status status_;
  std::string text_;
};

inline void ThrowIfError(const Status& status) {
  if (!status.ok()) throw StatusError(status);
}

template <typename T>
T ValueOrThrow(Result<T> result) {
  ThrowIfError(result.status());
  return *std::move(result);
}

}  // namespace cairn::python
