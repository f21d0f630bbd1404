#pragma once
// When the parts of one request's prompt were fetched and computed.

#include <cstdint>
#include <string_view>
#include <vector>

namespace cairn::worker {

// Seconds since the request left the queue.
struct TimelineSpan {
  enum class Kind : uint8_t { kMatch = 1, kFetch = 2, kCompute = 3 };
  static constexpr int32_t kAllLayers = -1;

  Kind kind = Kind::kCompute;
  int32_t layer = kAllLayers;
  // Blocks of the prompt, [begin, end); a last block that is not full counts.
  uint32_t block_begin = 0;
  uint32_t block_end = 0;
  double begin = 0;
  double end = 0;
};

using Timeline = std::vector<TimelineSpan>;

// "match", "fetch", "compute".
constexpr std::string_view Name(TimelineSpan::Kind kind) {
  switch (kind) {
    case TimelineSpan::Kind::kMatch:
      return "match";
    case TimelineSpan::Kind::kFetch:
      return "fetch";
    case TimelineSpan::Kind::kCompute:
      return "compute";
  }
  return "";
}

}  // namespace cairn::worker
