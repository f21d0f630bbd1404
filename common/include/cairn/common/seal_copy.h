#pragma once
// Seals a part while copying it to the place where it is stored.

#include <cstddef>
#include <cstdint>
#include <span>

#include "cairn/common/part.h"

namespace cairn::format {

// Writes a whole part: copies `payload`, the slices in layer order without gaps, behind the header,
// and hashes them in the same pass (memory/bulk_copy.h). `streaming`: this process will not read
// `part` soon, for example because it is the node's memory. The stores are ordered before the
// function returns. REQUIRES: part.size() == PartBytes(slice_lengths), payload.size() is the sum of
// the lengths, slice_lengths.size() is the number of layers of `rect`, and no overlap.
void SealCopy(std::span<std::byte> part, std::span<const std::byte> payload, Codec codec,
              const PartRect& rect, uint16_t block_tokens, std::span<const uint64_t> slice_lengths,
              bool streaming);

}  // namespace cairn::format
