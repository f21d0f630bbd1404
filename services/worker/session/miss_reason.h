#pragma once
// Why part of a prompt was computed instead of fetched, and where fetched bytes came from.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn::worker {

// Numbers and meanings as MissReason of proto/cairn/v1/common.proto.
enum class MissReason : uint8_t {
  kNone = 0,
  kAbsent = 1,
  kIncomplete = 2,
  kEvicted = 3,
  kCorrupt = 4,
  kDeadline = 5,
  kRefused = 6,
  kFingerprint = 7,
  kUnavailable = 8,
};
inline constexpr size_t kMissReasonCount = 9;

// "none", "absent", ...: the label of metrics and reports.
constexpr std::string_view Name(MissReason reason) {
  constexpr std::array<std::string_view, kMissReasonCount> kNames = {
      "none",     "absent",  "incomplete",  "evicted",    "corrupt",
      "deadline", "refused", "fingerprint", "unavailable"};
  return kNames[static_cast<size_t>(reason)];
}

// Fetched bytes by the tier of the cache node that they came from.
struct BytesByTier {
  uint64_t host = 0;
  uint64_t disk = 0;
  uint64_t total() const { return host + disk; }
};

}  // namespace cairn::worker
