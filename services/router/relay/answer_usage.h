#pragma once
// The usage in an engine's answer.

#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn::router {

struct AnswerUsage {
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t completion_tokens = 0;
};

// There is a field "usage" that has an object. Cheap, and only a hint: text of an answer is quoted
// in JSON, so it cannot look like that by chance.
bool HasUsage(std::string_view json);
// There is a field "choices" with an empty list. As above.
bool HasNoChoices(std::string_view json);
// The usage in the object `json`, or nullopt: it is no JSON, or has none. Numbers that make no
// sense count as 0.
std::optional<AnswerUsage> ReadUsage(std::string_view json);

}  // namespace cairn::router
