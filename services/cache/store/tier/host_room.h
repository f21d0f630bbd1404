#pragma once
// The room that bytes take in the host tier.

#include <cstdint>

namespace cairn::cache {

// Extents of the host tier begin at pages, and take whole ones.
inline constexpr uint64_t kHostPageBytes = 4096;
// The room of an extent of this length. Limits of reservations and of incomplete blocks count this:
// with the lengths alone, thousands of parts of some bytes each would take all of host.
inline constexpr uint64_t HostRoom(uint64_t length) {
  return (length + kHostPageBytes - 1) / kHostPageBytes * kHostPageBytes;
}

}  // namespace cairn::cache
