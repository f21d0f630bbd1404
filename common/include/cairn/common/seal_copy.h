#pragma once
// Sealing a part on the way to where it is stored.

#include <cstddef>
#include <cstdint>
#include <span>

#include "cairn/common/part.h"

namespace cairn::format {

// Writes a whole part: copies `payload`, the slices in layer order without gaps, behind the header,
// and hashes them in the same pass (memory/bulk_copy.h). `streaming`: `part` is not read here soon,
// as the node's memory; its stores are ordered before the return. REQUIRES: part.size() ==
// PartBytes(slice_lengths), payload.size() the sum of the lengths, slice_lengths.size() == rect's
// layers, and no overlap.
void SealCopy(std::span<std::byte> part, std::span<const std::byte> payload, Codec codec,
              const PartRect& rect, uint16_t block_tokens, std::span<const uint64_t> slice_lengths,
              bool streaming);

}  // namespace cairn::format
