#pragma once
// The next step of the conversation of a request, as its client expects it. The node, its clients
// and the worker use this one type. The numbers are those of NextUse in proto/cairn/v1/cache.proto.

#include <cstdint>
#include <optional>
#include <string_view>

namespace cairn {

enum class NextUse : uint8_t {
  kUnknown = 0,
  kSoon = 1,   // It goes on within minutes: its KV is worth its room.
  kLater = 2,  // It goes on, but not within minutes.
  kNever = 3,  // It is over.
};
inline constexpr int kNextUseCount = 4;

// The words of requests, options and logs.
constexpr std::string_view Name(NextUse next) {
  switch (next) {
    case NextUse::kUnknown:
      return "unknown";
    case NextUse::kSoon:
      return "soon";
    case NextUse::kLater:
      return "later";
    case NextUse::kNever:
      return "never";
  }
  return "unknown";
}

// nullopt: none of the words.
constexpr std::optional<NextUse> ParseNextUse(std::string_view word) {
  for (int i = 0; i < kNextUseCount; ++i) {
    if (Name(static_cast<NextUse>(i)) == word) return static_cast<NextUse>(i);
  }
  return std::nullopt;
}

}  // namespace cairn
