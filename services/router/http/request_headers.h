#pragma once
// The meaning of a request's headers, whoever brought it here: the HTTP port, or a gateway.

#include <optional>

#include "common/http/message.h"
#include "services/router/http/api_error.h"

namespace cairn::router {

// nullopt: application/json, with or without parameters. A client that names no type is believed.
std::optional<ApiError> CheckContentType(const http::Request& request);

// x-cairn-priority, x-cairn-next, and the names of request_names.h: a malformed x-cairn-trace is an
// error, a malformed traceparent is passed over. Call it after the body was read: a header is the
// more particular. nullopt: nothing is wrong with them.
std::optional<ApiError> ReadHeaders(const http::Request& request, GenerateRequest* generate);

}  // namespace cairn::router
