#pragma once
// The slices of a part whose rows are selected (PartHeader::selected). docs/inside/formats/part.md.
//
//   keep masks: one per KV head of the rectangle, in order; bit t % 64 of u64 t / 64 is token t of
//     the block, block_tokens bits and 0 up to a multiple of 64
//   then for each head that keeps rows, in order: [u32 length,] the codec's bytes of a slice of one
//     head with the kept rows as its tokens. The length stands there where it does not follow from
//     the codec and the number of rows.
//
// A layer without planes has no bytes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::format {

// u64 words of one head's mask.
constexpr uint32_t MaskWords(uint32_t block_tokens) { return (block_tokens + 63) / 64; }
constexpr uint64_t MaskBytes(uint32_t heads, uint32_t block_tokens) {
  return uint64_t{heads} * MaskWords(block_tokens) * 8;
}

// Bounds of the size of a slice of a layer with planes, for callers that do not know the codec.
// `raw_bytes`: the size of the slice when all rows are kept and stored raw.
constexpr uint64_t LeastSelectedBytes(uint32_t heads, uint32_t block_tokens) {
  return MaskBytes(heads, block_tokens);
}
constexpr uint64_t MostSelectedBytes(uint32_t heads, uint32_t block_tokens, uint64_t raw_bytes) {
  // For each head: a length, and the one byte that an entropy coder adds when it cannot compress.
  return MaskBytes(heads, block_tokens) + uint64_t{heads} * 5 + raw_bytes;
}

// Appends the masks of some heads: MaskWords(block_tokens) words each.
void WriteMasks(std::span<const uint64_t> words, std::vector<std::byte>* slice);

// Returns the masks at the beginning of a slice: [heads][MaskWords(block_tokens)]. DATA_LOSS: the
// slice is too short, or a mask has a bit after the last token of the block.
Result<std::vector<uint64_t>> ReadMasks(std::span<const std::byte> slice, uint32_t heads,
                                        uint32_t block_tokens);

}  // namespace cairn::format
