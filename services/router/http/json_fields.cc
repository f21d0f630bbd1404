#include "services/router/http/json_fields.h"

#include <algorithm>
#include <cmath>

namespace cairn::router {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxShownBytes = 64;

// Where the text ends that begins with the quote at `begin`: its last quote, or the end of the
// body. Prompts are long texts, so it goes from quote to quote instead of from byte to byte.
size_t EndOfText(std::string_view body, size_t begin) {
  size_t at = begin + 1;
  size_t quote = begin;
  while (at < body.size()) {
    if (quote < at) quote = std::min(body.find('"', at), body.size());
    const size_t escape = body.substr(at, quote - at).find('\\');
    if (escape == std::string_view::npos) return quote;
    at += escape + 2;  // Behind what is escaped, which may be that quote.
  }
  return body.size();
}

// Counts what a parser would build. Brackets and commas inside of text do not count. Text that is
// not JSON passes here and fails in the parser.
std::optional<ApiError> CheckShape(std::string_view body) {
  int depth = 0;
  size_t values = 1;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (c == '"') i = EndOfText(body, i);
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

// " at line 2, column 5" of the byte, counted from 1. Columns count bytes.
std::string PlaceOf(std::string_view body, size_t byte) {
  const std::string_view before = body.substr(0, byte == 0 ? 0 : byte - 1);
  const size_t line_begin = before.rfind('\n') + 1;  // 0 in the first line.
  return fmt::format(" at line {}, column {}", 1 + std::ranges::count(before, '\n'),
                     1 + before.size() - line_begin);
}

}  // namespace

std::optional<int64_t> WholeNumber(const Json& value) {
  if (value.is_number_unsigned()) {
    // Above 2^63 it is no int64_t.
    const auto number = value.get<uint64_t>();
    if (number > uint64_t{std::numeric_limits<int64_t>::max()}) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  // Written so that NaN is none. 2^63 itself has no int64_t.
  if (!(number >= -0x1p63 && number < 0x1p63) || number != std::trunc(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

std::string Shown(const Json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return fmt::format("a list of {}", value.size());
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kMaxShownBytes) text = text.substr(0, kMaxShownBytes) + "...";
  return text;
}

std::vector<model::TokenId> ReadTokenIds(Fields& fields, const char* param, const Json& list) {
  std::vector<model::TokenId> ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    const std::optional<int64_t> number = WholeNumber(id);
    if (!number || *number < 0 || *number > int64_t{std::numeric_limits<model::TokenId>::max()}) {
      fields.Fail(fmt::format("{}[{}]", param, ids.size()), id, "the id of a token");
      break;
    }
    ids.push_back(static_cast<model::TokenId>(*number));
  }
  return ids;
}

std::variant<Json, ApiError> ParseBody(std::string_view body) {
  if (auto error = CheckShape(body); error.has_value()) return *std::move(error);
  std::string got;
  try {
    Json json = Json::parse(body);
    if (json.is_object()) return json;
    got = Shown(json);
  } catch (const Json::parse_error& error) {
    // Only the exception has the position.
    got = "text that is not JSON" + PlaceOf(body, error.byte);
  } catch (const Json::out_of_range&) {
    got = "a number that is too large";
  }
  return ApiError{.message = fmt::format("body: got {}, expected a JSON object", got),
                  .code = "invalid_json"};
}

}  // namespace cairn::router
