#include "services/router/http/json_fields.h"

#include <limits>
#include <utility>

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

std::variant<Json, ApiError> ParseJsonObject(std::string_view body) {
  if (auto error = CheckShape(body); error.has_value()) return *std::move(error);
  Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object()) return json;
  return ApiError{
      .message = fmt::format("body: got {}, expected a JSON object",
                             json.is_discarded() ? "text that is not JSON" : Shown(json)),
      .code = "invalid_json"};
}

const Json* JsonFields::Find(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

void JsonFields::Fail(const std::string& param, const Json& value, std::string_view expected,
                      std::string code) {
  FailWith(param, fmt::format("field '{}': got {}, expected {}", param, Shown(value), expected),
           std::move(code));
}

void JsonFields::FailWith(const std::string& param, std::string message, std::string code) {
  if (error_.has_value()) return;
  error_ = ApiError{.message = std::move(message), .param = param, .code = std::move(code)};
}

bool JsonFields::Bool(const char* name) {
  const Json* const value = Find(name);
  if (value == nullptr) return false;
  if (value->is_boolean()) return value->get<bool>();
  Fail(name, *value, "true or false");
  return false;
}

std::optional<double> JsonFields::Real(const char* name, double least, double most) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  const double number = value->is_number() ? value->get<double>() : least - 1;
  if (number >= least && number <= most) return number;
  Fail(name, *value, fmt::format("a number from {} to {}", least, most));
  return std::nullopt;
}

std::optional<int64_t> JsonFields::Integer(const char* name, int64_t least, int64_t most) {
  const Json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  // Above 2^63 it is unsigned, and not an int64_t.
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (fits && value->get<int64_t>() >= least && value->get<int64_t>() <= most) {
    return value->get<int64_t>();
  }
  Fail(name, *value, fmt::format("an integer from {} to {}", least, most));
  return std::nullopt;
}

std::string JsonFields::Text(const char* name) {
  const Json* const value = Find(name);
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  Fail(name, *value, "text");
  return {};
}

}  // namespace cairn::router
