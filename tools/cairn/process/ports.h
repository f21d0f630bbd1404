#pragma once
// Who listens at an address of this machine.

#include <string>

#include "cairn/common/status.h"

namespace cairn::cli {

// Whether a server of ours could listen at HOST:PORT now. FAILED_PRECONDITION: somebody else does.
// OK also where that cannot be told: the server itself then says why it cannot start.
Status CheckFree(const std::string& address);

// Whether somebody takes connections at 127.0.0.1:PORT.
bool SomebodyListens(const std::string& address);

}  // namespace cairn::cli
