#pragma once
// The JSON of a request that goes to an engine as it came. Read is only what the router needs: to
// decide, and to know what comes back.

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "common/memory/charged_string.h"
#include "services/router/http/api_request.h"

namespace cairn::router {

// Pure: any thread. The request has `raw`, with the body and these headers, and nothing of
// sampling. The prompt is a copy, so it counts in addition to the body. An error: the body is no
// JSON object, a field that is read has the wrong type, or there is no room for the copy.
std::variant<ApiRequest, ApiError> ParseRelayRequest(Endpoint endpoint,
                                                     std::vector<RawHeader> headers,
                                                     ChargedString body);

}  // namespace cairn::router
