#pragma once
// Writes a part from pieces of the caller's memory. Knows no Python: runs without the GIL.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "clients/python/src/block_bytes.h"
#include "clients/python/src/field.h"

namespace cairn::python {

// One part in memory of the caller.
struct PartContent {
  BlockBytes<const std::byte> bytes;
  std::vector<uint64_t> lengths;  // The lengths of its slices (SliceLengths).
};

// Lengths of the slices of a part with `bytes` bytes. INVALID_ARGUMENT, naming `field`, when a part
// with this rectangle has another size.
Result<std::vector<uint64_t>> SliceLengths(const Layout& layout, const format::PartRect& rect,
                                           uint64_t bytes, const Field& field);

// Copies and hashes in one pass. REQUIRES: room.size() == PartBytes(lengths), and the bytes are the
// sum of the lengths.
void SealPieces(std::span<std::byte> room, const PartContent& content, format::Codec codec,
                const format::PartRect& rect, uint16_t block_tokens, bool streaming);

}  // namespace cairn::python
