#pragma once
// The errors between modules: absl::Status under our own names.
//
// A code tells the caller what to do next, and docs/program/errors.md has the table. A miss is a
// value, never an error.

#include <fmt/format.h>

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace cairn {

using Status = absl::Status;
using StatusCode = absl::StatusCode;
template <typename T>
using Result = absl::StatusOr<T>;

inline Status OkStatus() { return absl::OkStatus(); }

// Errorf(code, "field '{}': got {}, expected {}", ...).
template <typename... Args>
[[nodiscard]] Status Errorf(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[nodiscard]] Status InvalidArgument(fmt::format_string<Args...> format, Args&&... args) {
  return Status(StatusCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

// The message as std::string: Debian's absl::string_view is not std::string_view.
inline std::string Message(const Status& status) { return std::string(status.message()); }

// "NOT_FOUND: text", or "OK".
inline std::string ToString(const Status& status) { return status.ToString(); }

// Prefixes the message of a failed status with `context: `; an OK status stays OK.
[[nodiscard]] Status Annotate(const Status& status, const std::string& context);

}  // namespace cairn

#define CAIRN_STATUS_CONCAT_INNER(a, b) a##b
#define CAIRN_STATUS_CONCAT(a, b) CAIRN_STATUS_CONCAT_INNER(a, b)

#define CAIRN_RETURN_IF_ERROR(expr)                \
  do {                                             \
    ::cairn::Status cairn_status_ = (expr);        \
    if (!cairn_status_.ok()) return cairn_status_; \
  } while (false)

#define CAIRN_ASSIGN_OR_RETURN(lhs, expr) \
  CAIRN_ASSIGN_OR_RETURN_IMPL(CAIRN_STATUS_CONCAT(cairn_result_, __LINE__), lhs, expr)
#define CAIRN_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return tmp.status();               \
  lhs = std::move(tmp).value()

// An invariant of our own code: if it does not hold, this prints and aborts. Never use it on user
// input.
#define CAIRN_CHECK(cond) \
  (static_cast<bool>(cond) ? (void)0 : ::cairn::internal::CheckFailed(#cond, __FILE__, __LINE__))

namespace cairn::internal {
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);
// Called before a failed check prints and aborts, such as to write lines of the log that wait.
void SetBeforeAbort(void (*hook)());
}  // namespace cairn::internal
