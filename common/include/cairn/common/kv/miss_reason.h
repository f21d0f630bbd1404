#pragma once
// Why a node did not serve a block.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn {

// The numbers are those of the wire (MissReason of proto/cairn/v1/common.proto) and of shared
// memory. No node sends kUnavailable: the client says it when it did not ask the node, or got no
// answer.
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
  kExpired = 9,
};
inline constexpr size_t kMissReasonCount = 10;
// The first kNodeMissReasonCount reasons are those that a node sends.
inline constexpr size_t kNodeMissReasonCount = 10;

// The label value in metrics: "none", "absent", ...
constexpr std::string_view Name(MissReason reason) {
  switch (reason) {
    case MissReason::kNone:
      return "none";
    case MissReason::kAbsent:
      return "absent";
    case MissReason::kIncomplete:
      return "incomplete";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kCorrupt:
      return "corrupt";
    case MissReason::kDeadline:
      return "deadline";
    case MissReason::kRefused:
      return "refused";
    case MissReason::kFingerprint:
      return "fingerprint";
    case MissReason::kUnavailable:
      return "unavailable";
    case MissReason::kExpired:
      return "expired";
  }
  return "unknown";
}

}  // namespace cairn
