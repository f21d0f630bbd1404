#pragma once
// The limits of what one call may ask for. The node and its clients use the same limits.

#include <cstddef>

namespace cairn {

inline constexpr size_t kMaxKeysPerCall = 65536;
// Parts to reserve, reservations to commit.
inline constexpr size_t kMaxPartsPerCall = 4096;
// Nodes that a match names, and characters of each name.
inline constexpr size_t kMaxHolders = 4;
inline constexpr size_t kMaxNodeId = 128;

}  // namespace cairn
