#pragma once
// Which addresses of this machine are free, and who listens there.

#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::cli {

// `count` different "127.0.0.1:PORT" with ports that nobody uses now, for processes that must
// know the addresses of each other before they start. Not of those ports that the kernel gives to
// whoever asks for any, as each outgoing connection does: one of them may be gone when its server
// starts. INTERNAL when there are fewer.
Result<std::vector<std::string>> FreeLoopbackAddresses(size_t count);

// Whether a server of ours could listen at HOST:PORT now. FAILED_PRECONDITION: somebody else does.
// OK also where that cannot be told: the server itself then says why it cannot start.
Status CheckFree(const std::string& address);

// Whether somebody takes connections at 127.0.0.1:PORT.
bool SomebodyListens(const std::string& address);

}  // namespace cairn::cli
