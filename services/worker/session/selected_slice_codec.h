#pragma once
// One layer of one block of a segment, as it is stored: the keep masks, then the kept rows of each
// head (common/format/selected_slice.h).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cairn/common/status.h"
#include "services/worker/session/kv_codec.h"

namespace cairn::worker {

struct SelectedSlicePlace {
  int layer = 0;
  uint64_t first_position = 0;  // Position of the first token of the block.
  uint32_t heads = 0;           // KV heads that the slice has.
  uint32_t block_tokens = 64;
};

// A head's share of a slice.
struct SelectedHead {
  KvCodec::RowsPlace place;          // rows: kept ones, may be 0.
  std::span<const std::byte> bytes;  // The bytes of the slice: its rows, encoded.
};

// Takes a slice apart: its masks, and where the bytes of each head are. DATA_LOSS: no selection
// makes such masks, or the lengths do not add up. The heads point into `slice`.
Result<std::vector<SelectedHead>> ParseSelectedSlice(const KvCodec& codec,
                                                     const SelectedSlicePlace& place,
                                                     std::span<const std::byte> slice);

// Copies the kept rows of a head, [rows][head_dim] each: one row for each bit in its mask.
using RowsReader = std::function<void(uint32_t head, int64_t rows, uint16_t* k, uint16_t* v)>;

// Appends the slice to `out`. `masks`: [heads][MaskWords(block_tokens)]. The errors are those of
// KvCodec::Encode, and `out` is then unspecified.
Status AppendSelectedSlice(const KvCodec& codec, const SelectedSlicePlace& place, int64_t head_dim,
                           std::span<const uint64_t> masks, const RowsReader& read,
                           KvCodec::Scratch& scratch, std::vector<std::byte>* out);

}  // namespace cairn::worker
