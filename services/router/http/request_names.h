#pragma once
// The names by which a request is looked for in logs and traces. Each failed request has a line of
// the log with them.

#include <string>
#include <string_view>

#include "common/http/message.h"
#include "services/router/engine/router.h"
#include "services/router/http/api_counters.h"

namespace cairn::router {

// The headers x-request-id, x-cairn-trace and traceparent. A value that is no name counts as none:
// names never refuse a request. RequestNames::id is the caller's to set.
RequestNames NamesIn(const http::Request& request);

// How a request ended. `reason` empty: well, for the log at debug level. A status of 500 and more
// is a warning. Other failures have a line above debug level if the caller named a trace.
void LogEnd(const RequestNames& names, Route route, int status, std::string_view reason);

// The same for an error. A caller that left is no failure of ours.
void LogError(const RequestNames& names, Route route, int status, const GenerateError& error);

}  // namespace cairn::router
