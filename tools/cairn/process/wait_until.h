#pragma once
// Waits for something that another process says only when it is asked.

#include <chrono>
#include <functional>
#include <string_view>

#include "cairn/common/status.h"

namespace cairn::cli {

// Asks again and again until the answer is true. Errors: that of the answer; DEADLINE_EXCEEDED,
// which says `what`; CANCELLED, at once, after Ctrl-C.
Status WaitUntil(const std::function<Result<bool>()>& done, std::chrono::milliseconds timeout,
                 std::string_view what);

}  // namespace cairn::cli
