#pragma once
// What a caller does after an error. docs/errors.md is this table in words.

#include <cstdint>
#include <string_view>

#include "cairn/common/status.h"

namespace cairn::client {

// In all cases the request itself goes on without the cache; this is about the cache call.
enum class Action : uint8_t {
  kProceed = 0,         // OK.
  kTreatAsSuccess = 1,  // Somebody else did it already.
  kTreatAsMiss = 2,     // Recompute; the same call later may succeed with other data.
  kRetryLater = 3,      // Recompute now; the same call may succeed after a back-off.
  kReopen = 4,          // Session, lease or namespace is gone: match again, in a new session.
  // Never gets better by itself: a bug or a wrong setting. Log it once, do not retry.
  kFixRequest = 5,
  kStop = 6,  // The caller itself ended the call.
};
std::string_view Name(Action action);

Action NextAction(StatusCode code);

}  // namespace cairn::client
