#pragma once
// Why a block is not served.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cairn::cache {

// As MissReason of proto/cairn/v1/common.proto, same numbers.
enum class MissReason : uint8_t {
  kNone = 0,
  kAbsent = 1,
  kIncomplete = 2,
  kEvicted = 3,
  kCorrupt = 4,
  kDeadline = 5,
  kRefused = 6,
  kFingerprint = 7,
};
inline constexpr size_t kMissReasonCount = 8;
std::string_view Name(MissReason reason);

}  // namespace cairn::cache
