#pragma once
// Where fetched bytes came from.

#include <cstdint>

namespace cairn::worker {

// Fetched bytes by the tier of the cache node that they came from.
struct BytesByTier {
  uint64_t host = 0;
  uint64_t disk = 0;
  uint64_t lent = 0;  // How many of these were used in place in the node's memory, without a copy.
  uint64_t total() const { return host + disk; }
};

}  // namespace cairn::worker
