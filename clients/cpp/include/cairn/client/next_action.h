#pragma once
// The actions of a caller after an error. docs/program/errors.md is this table in words.

#include <cstdint>
#include <string_view>

#include "cairn/common/status.h"

namespace cairn::client {

// In all cases the request itself goes on without the cache. The action is about the cache call
// only.
enum class Action : uint8_t {
  kProceed = 0,         // OK.
  kTreatAsSuccess = 1,  // Somebody else has already done it.
  kTreatAsMiss = 2,     // Recompute. The same call may succeed later, with other data.
  kRetryLater = 3,      // Recompute now. The same call may succeed after a back-off.
  kReopen = 4,          // The session, lease or namespace is gone: match again, in a new session.
  // A bug or a wrong setting, which does not go away by itself. Log it once, do not retry.
  kFixRequest = 5,
  kStop = 6,  // The caller itself ended the call.
};
std::string_view Name(Action action);

Action NextAction(StatusCode code);

}  // namespace cairn::client
