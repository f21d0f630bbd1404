#pragma once
// What a call may ask for at once. Node and clients agree on it.

#include <cstddef>

namespace cairn {

inline constexpr size_t kMaxKeysPerCall = 65536;
// Parts to reserve, reservations to commit.
inline constexpr size_t kMaxPartsPerCall = 4096;

}  // namespace cairn
