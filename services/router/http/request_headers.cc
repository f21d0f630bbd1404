#include "services/router/http/request_headers.h"

#include <charconv>
#include <utility>

#include "model/request_limits.h"
#include "services/router/http/request_names.h"

namespace cairn::router {
namespace {

ApiError HeaderError(std::string name, const std::string& value, std::string_view expected) {
  return {.message = fmt::format("header '{}': got '{}', expected {}", name, value, expected),
          .param = std::move(name),
          .code = "invalid_value"};
}

}  // namespace

std::optional<ApiError> CheckContentType(const http::Request& request) {
  const std::string* const type = request.Find("content-type");
  if (type == nullptr) return std::nullopt;
  std::string_view name = std::string_view(*type).substr(0, type->find(';'));
  name = name.substr(0, name.find_last_not_of(' ') + 1);
  if (http::EqualNames(name, "application/json")) return std::nullopt;
  return ApiError{
      .status = 415,
      .message = fmt::format("header 'Content-Type': got '{}', expected application/json", *type),
      .param = "content-type",
      .code = "unsupported_media_type"};
}

std::optional<ApiError> ReadHeaders(const http::Request& request, GenerateRequest* generate) {
  if (const std::string* const text = request.Find("x-cairn-priority"); text != nullptr) {
    int priority = 0;
    const char* const end = text->data() + text->size();
    // "+5" is 5, but "+-5" is no number.
    const bool plus = text->size() > 1 && text->front() == '+' && (*text)[1] != '-';
    const auto [at, ec] = std::from_chars(text->data() + (plus ? 1 : 0), end, priority);
    if (ec != std::errc() || at != end || priority < model::kLeastPriority ||
        priority > model::kGreatestPriority) {
      return HeaderError(
          "x-cairn-priority", *text,
          fmt::format("an integer from {} to {}", model::kLeastPriority, model::kGreatestPriority));
    }
    generate->priority = priority;
  }
  if (const std::string* const text = request.Find("x-cairn-next"); text != nullptr) {
    const std::optional<NextUse> next = ParseNextUse(*text);
    if (!next.has_value()) {
      return HeaderError("x-cairn-next", *text, "soon, later, never or unknown");
    }
    generate->next = *next;
  }
  RequestNames names = NamesIn(request);
  if (const std::string* const text = request.Find("x-cairn-trace");
      text != nullptr && (text->empty() || (names.trace != *text && names.word != *text))) {
    return HeaderError("x-cairn-trace", *text, "one value, 1 to 64 characters of [A-Za-z0-9-]");
  }
  names.id = std::move(generate->names.id);
  generate->names = std::move(names);
  return std::nullopt;
}

}  // namespace cairn::router
