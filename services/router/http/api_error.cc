#include "services/router/http/api_error.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace cairn::router {
namespace {

int HttpStatusOf(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kOutOfRange:
    case StatusCode::kUnimplemented:
      return 400;
    case StatusCode::kUnauthenticated:
      return 401;
    case StatusCode::kPermissionDenied:
      return 403;
    case StatusCode::kNotFound:
      return 404;
    case StatusCode::kResourceExhausted:
      return 429;
    case StatusCode::kUnavailable:
    case StatusCode::kCancelled:
      return 503;
    case StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

}  // namespace

ApiError NoRoomForBody(const Status& room) {
  return {.status = 503,
          .message = "body: " + Message(room) + "; try again later",
          .code = "unavailable",
          .retry_after = std::chrono::seconds(1)};
}

std::string_view TypeOf(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 404) return "not_found_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

ApiError FromRouter(const GenerateError& error) {
  ApiError answer{.status = HttpStatusOf(error.status.code()),
                  .message = Message(error.status),
                  .param = error.field,
                  .retry_after = error.retry_after};
  if (answer.status == 400 && !error.field.empty()) answer.code = "invalid_value";
  if (error.prompt_too_long) answer.code = "context_length_exceeded";
  // Clients take a 404 for a wrong model. For anything else that was not found, the server is at
  // fault.
  if (answer.status == 404 && error.field != "model") answer.status = 500;
  if (answer.status == 404) answer.code = "model_not_found";
  if (answer.status == 429) answer.code = "rate_limit_exceeded";
  if (answer.status == 503) answer.code = "unavailable";
  return answer;
}

std::string RenderError(const ApiError& error) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::json() : nlohmann::json(text);
  };
  const nlohmann::json json = {{"error",
                                {{"message", error.message},
                                 {"type", TypeOf(error.status)},
                                 {"param", text_or_null(error.param)},
                                 {"code", text_or_null(error.code)}}}};
  // A message may quote what the client sent.
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

http::Response ErrorResponse(const ApiError& error) {
  http::Response response{.status = error.status, .body = RenderError(error) + "\n"};
  if (error.retry_after.has_value()) {
    const auto seconds = std::chrono::ceil<std::chrono::seconds>(*error.retry_after).count();
    response.headers.push_back(
        {"Retry-After", std::to_string(std::max<int64_t>(1, static_cast<int64_t>(seconds)))});
  }
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

}  // namespace cairn::router
