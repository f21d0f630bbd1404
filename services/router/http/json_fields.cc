#include "services/router/http/json_fields.h"

namespace cairn::router {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxShownBytes = 64;

// Counts what a parser would build. Brackets and commas inside of text do not count. Text that is
// not JSON passes here and fails in the parser.
std::optional<ApiError> CheckShape(std::string_view body) {
  int depth = 0;
  size_t values = 1;
  bool in_text = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_text) {
      if (c == '\\') ++i;
      in_text = c != '"';
      continue;
    }
    in_text = c == '"';
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (c == ',' || c == '[' || c == '{') ++values;
    if (depth > kMaxJsonDepth || values > kMaxJsonValues) {
      return ApiError{.message = fmt::format("body: got JSON with more than {} levels or {} "
                                             "values, expected less",
                                             kMaxJsonDepth, kMaxJsonValues),
                      .code = "json_too_complex"};
    }
  }
  return std::nullopt;
}

}  // namespace

std::string Shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMaxShownBytes) text = text.substr(0, kMaxShownBytes) + "...";
  return text;
}

std::variant<Json, ApiError> ParseBody(std::string_view body) {
  if (auto error = CheckShape(body); error.has_value()) return *std::move(error);
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return ApiError{
      .message = fmt::format("body: got {}, expected a JSON object",
                             json.is_discarded() ? "text that is not JSON" : Shown(json)),
      .code = "invalid_json"};
}

}  // namespace cairn::router
