#pragma once
// The errors of OpenAI's API: {"error": {"message", "type", "param", "code"}}.

#include <optional>
#include <string>

#include "cairn/common/clock.h"
#include "common/http/message.h"
#include "services/router/engine/router.h"

namespace cairn::router {

struct ApiError {
  int status = 400;
  std::string message = {};
  std::string param = {};  // The field or header at fault. Empty: null in the answer.
  std::string code = {};   // For programs. Empty: null in the answer.
  std::optional<Duration> retry_after = {};
};

// 503, with what ByteShare::Charge said of the memory for bodies.
ApiError NoRoomForBody(const Status& room);
// "invalid_request_error", "rate_limit_error", ...
std::string_view TypeOf(int status);
ApiError FromRouter(const GenerateError& error);
// The JSON object alone.
std::string RenderError(const ApiError& error);
// With Retry-After, in whole seconds and at least 1, where the error has it.
http::Response ErrorResponse(const ApiError& error);

}  // namespace cairn::router
