#pragma once
// The parts that attention of prompts and attention of decoded tokens share: where keys lie, how a
// tile of them is kept in shared memory, and how scores become weights.
//
// A lane has rows g = lane / 4 and g + 8 of its warp's 16, as the small matrices of device.h do.

#include "cairn/kernels/batch/attention.h"
#include "kernels/cuda/batch.cuh"

namespace cairn::kernels::cuda {

// Rows of K and V of one head: those of a prefix, or those in a sequence's pages.
struct KeyRows {
  const std::byte* const* pages = nullptr;
  int32_t page_rows = 1;
  int64_t k_offset = 0;
  int64_t v_offset = 0;
  int32_t count = 0;
};

CAIRN_DEVICE batch::KeptRows KeptOf(const batch::KvForm& form, const batch::SequenceKv& sequence,
                                    int head) {
  if (sequence.prefix == nullptr) return {};
  return *Global(sequence.prefix + static_cast<int64_t>(form.layer) * form.kv_heads + head);
}

CAIRN_DEVICE KeyRows RowsOfPrefix(const batch::KvForm& form, const batch::KeptRows& kept) {
  return {kept.units, form.unit_rows, 0, static_cast<int64_t>(form.unit_v_offset),
          static_cast<int32_t>(kept.rows)};
}

CAIRN_DEVICE KeyRows RowsOfPages(const batch::KvForm& form, const batch::SequenceKv& sequence,
                                 int head, int count) {
  const auto at = static_cast<int64_t>(form.head_stride) * head;
  return {sequence.pages, form.block_tokens, static_cast<int64_t>(form.k_offset) + at,
          static_cast<int64_t>(form.v_offset) + at, count};
}

// Where row `row` would lie if K and V began at the page's address.
template <int kDim>
CAIRN_DEVICE const std::byte* PlaceOf(const KeyRows& rows, int row) {
  const int page = row / rows.page_rows;
  return *Global(rows.pages + page) + static_cast<int64_t>(row - page * rows.page_rows) * kDim * 2;
}

// Where chunk `chunk` (8 numbers) of row `row` of a tile lies, in numbers: rows change the order of
// their chunks, so that eight rows of one chunk lie in different banks.
template <int kDim>
CAIRN_DEVICE int Swizzled(int row, int chunk) {
  return row * kDim + ((chunk ^ (row & 7)) * 8);
}

// Less than every score, yet finite: a difference of two of them is 0.
constexpr float kNoScore = -1e30f;
constexpr float kLog2E = 1.44269504f;

// Scores of 8 * kTiles keys to weights, in place. In row g + 8 r the first visible[r] keys count.
// The sums of values so far must be multiplied by `rescale`.
template <int kTiles>
CAIRN_DEVICE void WeighTile(float scale, const int (&visible)[2], int lane,
                            float (&scores)[kTiles][4], float (&max)[2], float (&sum)[2],
                            float (&rescale)[2]) {
  CAIRN_UNROLL
  for (int r = 0; r < 2; ++r) {
    float top = max[r];
    CAIRN_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      CAIRN_UNROLL
      for (int i = 0; i < 2; ++i) {
        float& score = scores[n][2 * r + i];
        score = n * 8 + lane % 4 * 2 + i < visible[r] ? score * scale : kNoScore;
        top = fmaxf(top, score);
      }
    }
    top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 1));
    top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 2));
    rescale[r] = Exp2(max[r] - top);
    max[r] = top;
    float own = 0.0f;
    CAIRN_UNROLL
    for (int n = 0; n < kTiles; ++n) {
      CAIRN_UNROLL
      for (int i = 0; i < 2; ++i) {
        float& score = scores[n][2 * r + i];
        score = Exp2(score - top);
        own += score;
      }
    }
    sum[r] = sum[r] * rescale[r] + own;
  }
}

// The weights of 16 keys, as the left factor of the next product.
CAIRN_DEVICE void WeightsOf16(const float (&low)[4], const float (&high)[4], uint32_t (&a)[4]) {
  a[0] = HalfPair(low[0], low[1]);
  a[1] = HalfPair(low[2], low[3]);
  a[2] = HalfPair(high[0], high[1]);
  a[3] = HalfPair(high[2], high[3]);
}

}  // namespace cairn::kernels::cuda
