#include "services/router/engine/check_request.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/request_limits.h"
#include "model/utf8.h"

namespace cairn::router {
namespace {

using model::kGreatestPriority;
using model::kLeastPriority;
using model::kMaxStopBytes;
using model::kMaxStops;
using model::kMaxTemperature;
using model::kMaxTenantBytes;

bool IsUtf8(std::string_view text) { return model::ValidUtf8Prefix(text) == text.size(); }

std::optional<GenerateError> CheckSampling(const GenerateRequest& request) {
  if (!(request.temperature >= 0 && request.temperature <= kMaxTemperature)) {
    return FieldError("temperature", fmt::format("got {}, expected 0 to {}", request.temperature,
                                                 kMaxTemperature));
  }
  if (!(request.top_p >= 0 && request.top_p <= 1)) {
    return FieldError("top_p", fmt::format("got {}, expected 0 to 1", request.top_p));
  }
  if (request.max_tokens && *request.max_tokens < 1) {
    return FieldError(std::string(request.max_tokens_name), "got 0, expected at least 1");
  }
  return std::nullopt;
}

std::optional<GenerateError> CheckStops(const std::vector<std::string>& stops) {
  if (stops.size() > kMaxStops) {
    return FieldError("stop",
                      fmt::format("got {} texts, expected at most {}", stops.size(), kMaxStops));
  }
  for (const std::string& stop : stops) {
    if (stop.empty() || stop.size() > kMaxStopBytes || !IsUtf8(stop)) {
      return FieldError("stop", fmt::format("got a text of {} bytes, expected 1 to {} of UTF-8",
                                            stop.size(), kMaxStopBytes));
    }
  }
  return std::nullopt;
}

}  // namespace

uint64_t TokenBytes(size_t tokens) {
  // Bytes of keys for a token, with the smallest usual blocks: a key for each 16 tokens.
  constexpr uint64_t kKeyBytes = sizeof(BlockKey) / 16;
  return tokens * (sizeof(model::TokenId) + kKeyBytes);
}

GenerateError FieldError(std::string field, const std::string& what) {
  GenerateError error;
  error.status = InvalidArgument("field '{}': {}", field, what);
  error.field = std::move(field);
  return error;
}

GenerateError PromptError(const GenerateRequest& request, const Status& status) {
  const bool chat = std::holds_alternative<std::vector<model::ChatMessage>>(request.prompt);
  GenerateError error = FieldError(chat ? "messages" : "prompt", Message(status));
  if (status.code() == StatusCode::kOutOfRange) {
    error.prompt_too_long = true;
  } else if (status.code() != StatusCode::kInvalidArgument) {
    error.status = Annotate(status, fmt::format("field '{}'", error.field));
  }
  return error;
}

GenerateError NoRoomFor(const std::string& what, const Status& room) {
  return {.status = Errorf(StatusCode::kUnavailable, "prompt: {}: {}; try again later", what,
                           Message(room)),
          .retry_after = std::chrono::seconds(1)};
}

std::optional<GenerateError> CheckRequest(const GenerateRequest& request, TimePoint now) {
  if (auto error = CheckSampling(request)) return error;
  if (auto error = CheckStops(request.stop)) return error;
  if (request.priority < kLeastPriority || request.priority > kGreatestPriority) {
    return FieldError("priority", fmt::format("got {}, expected {} to {}", request.priority,
                                              kLeastPriority, kGreatestPriority));
  }
  const bool printable =
      std::ranges::all_of(request.tenant, [](unsigned char c) { return c > ' ' && c != 0x7f; });
  if (request.tenant.size() > kMaxTenantBytes || !printable || !IsUtf8(request.tenant)) {
    return FieldError("tenant", fmt::format("got {} bytes, expected at most {} of UTF-8 without "
                                            "spaces",
                                            request.tenant.size(), kMaxTenantBytes));
  }
  if (request.deadline && *request.deadline <= now) {
    return FieldError("deadline", "got a time in the past, expected one that is still to come");
  }
  return std::nullopt;
}

}  // namespace cairn::router
