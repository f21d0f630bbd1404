#include "services/router/relay/answer_usage.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace cairn::router {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSpace = " \t\r\n";

// The first character that is no space, from `at` on. 0: there is none.
char Next(std::string_view json, size_t* at) {
  *at = json.find_first_not_of(kSpace, *at);
  return *at == std::string_view::npos ? '\0' : json[*at];
}

// Where the value of a field begins, or npos. `name` with its quotes. The last one: a text of the
// answer, whose quotes are escaped, cannot have it.
size_t FindValue(std::string_view json, std::string_view name) {
  size_t at = json.rfind(name);
  if (at == std::string_view::npos) return at;
  at += name.size();
  if (Next(json, &at) != ':') return std::string_view::npos;
  ++at;
  Next(json, &at);
  return at;
}

// Where the object of a field "usage" begins, or npos.
size_t FindUsage(std::string_view json) {
  const size_t at = FindValue(json, "\"usage\"");
  return at == std::string_view::npos || json[at] != '{' ? std::string_view::npos : at;
}

uint32_t Count(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_unsigned()) return 0;
  const uint64_t value = found->get<uint64_t>();
  return value > std::numeric_limits<int32_t>::max() ? 0 : static_cast<uint32_t>(value);
}

// The object that begins the text: up to the brace that closes it.
std::string_view ObjectOf(std::string_view text) {
  constexpr size_t kMost = 16 << 10;
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size() && i < kMost; ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return text.substr(0, i + 1);
    }
  }
  return {};
}

}  // namespace

bool HasUsage(std::string_view json) { return FindUsage(json) != std::string_view::npos; }

bool HasNoChoices(std::string_view json) {
  size_t at = FindValue(json, "\"choices\"");
  if (at == std::string_view::npos || json[at] != '[') return false;
  return Next(json, &++at) == ']';
}

std::optional<AnswerUsage> ReadUsage(std::string_view json) {
  const size_t at = FindUsage(json);
  if (at == std::string_view::npos) return std::nullopt;
  const Json usage = Json::parse(ObjectOf(json.substr(at)), nullptr, /*allow_exceptions=*/false);
  if (!usage.is_object()) return std::nullopt;
  AnswerUsage read;
  read.prompt_tokens = Count(usage, "prompt_tokens");
  read.completion_tokens = Count(usage, "completion_tokens");
  const auto details = usage.find("prompt_tokens_details");
  if (details != usage.end() && details->is_object()) {
    read.cached_tokens = std::min(Count(*details, "cached_tokens"), read.prompt_tokens);
  }
  return read;
}

}  // namespace cairn::router
