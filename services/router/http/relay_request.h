#pragma once
// The JSON of a request that goes to an engine as it came. Read is only what the router needs: to
// decide, and to know what comes back.

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "services/router/http/api_request.h"

namespace cairn::router {

// Pure: any thread. The request has `raw`, with the body and these headers, and nothing of
// sampling. An error: the body is no JSON object, or a field that is read has the wrong type.
std::variant<ApiRequest, ApiError> ParseRelayRequest(Endpoint endpoint,
                                                     std::vector<RawHeader> headers,
                                                     std::string body);

}  // namespace cairn::router
