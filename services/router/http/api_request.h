#pragma once
// The JSON of /v1/completions and /v1/chat/completions to what the router routes. Only this file
// reads requests of strangers; docs/program/http-api.md lists every field.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "services/router/engine/router.h"
#include "services/router/http/api_error.h"

namespace cairn::router {

enum class Endpoint { kCompletions, kChat };

struct ApiRequest {
  GenerateRequest generate = {};
  bool has_seed = false;  // Otherwise the caller of the parser draws one.
  bool stream = false;
  bool include_usage = false;  // At the end of a stream.
};

// Pure: any thread. An error names the field, what it got and what was expected. A field that the
// API does not have is ignored. One that it has and we have not is an error, except with the value
// that means "off".
std::variant<ApiRequest, ApiError> ParseApiRequest(Endpoint endpoint, std::string_view body);

// The memory of the request's prompt counts in `share` from now on, and the share stays with the
// request. An error: the share's budget has no room for it.
std::optional<ApiError> Charge(ByteShare share, GenerateRequest* request);

}  // namespace cairn::router
