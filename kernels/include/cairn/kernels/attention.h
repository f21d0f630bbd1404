#pragma once
// Causal softmax attention with grouped queries over paged binary16 keys and values.
//
// A call works on one KV head and its `group` query heads; threads share the heads and rows. Keys
// are read in tiles from the first one on, so a row's result depends on its own position only.
//
// Before the sequence's own tokens there may be a ragged prefix: the rows that a selection kept,
// with a different number for each head. Every row attends to all of it. The rotation of a key
// already contains the position of the key in the sequence. In decode the prefix is a part like
// others, with a PagedKv of its own.

#include <cstddef>
#include <cstdint>

namespace cairn::kernels {

// The K and V of one layer of one sequence. Token t lies in page t / block_tokens. Inside a page,
// head h of K starts at k_offset + h * head_stride bytes: [block_tokens][head_dim] binary16.
struct PagedKv {
  const std::byte* const* pages = nullptr;
  int64_t block_tokens = 64;
  int64_t head_dim = 0;
  size_t k_offset = 0;
  size_t v_offset = 0;
  size_t head_stride = 0;

  const uint16_t* K(int64_t head, int64_t token) const { return At(k_offset, head, token); }
  const uint16_t* V(int64_t head, int64_t token) const { return At(v_offset, head, token); }

 private:
  const uint16_t* At(size_t plane, int64_t head, int64_t token) const {
    const std::byte* p = pages[token / block_tokens] + plane +
                         static_cast<size_t>(head) * head_stride +
                         static_cast<size_t>(token % block_tokens * head_dim) * sizeof(uint16_t);
    return reinterpret_cast<const uint16_t*>(p);
  }
};

// Row r is token first_position + r of `kv` and attends to tokens 0..first_position + r; these are
// in the pages already. Before them it attends to `prefix`. Query head kv_head * group + g of row r
// is at q + r * q_stride + (kv_head * group + g) * head_dim; out likewise.
//
// The earlier tokens may also be read in several calls, for sequences whose earlier keys and values
// are not in memory at the same time. Each call but the last reads its `prefix` alone, with `more`;
// each but the first goes on where the call before it ended, with `resume`. All have the same
// queries, and the same `state`, which nobody touches between them. If every prefix but the last
// has whole tiles of rows, the result is, to the last bit, that of one call over all of them.
struct AttentionArgs {
  PagedKv kv;
  PagedKv prefix;  // The prefix of this KV head alone: read as head 0. Head size as in `kv`.
  int64_t prefix_rows = 0;
  const float* q = nullptr;
  float* out = nullptr;
  int64_t rows = 0;
  int64_t q_stride = 0;
  int64_t out_stride = 0;
  int64_t first_position = 0;
  int64_t kv_head = 0;
  int64_t group = 1;
  float scale = 1.0f;
  std::byte* scratch = nullptr;  // AttentionScratchBytes(...), 64-byte aligned.
  // AttentionStateBytes(...), 64-byte aligned: the sums so far. Null: the call is alone.
  std::byte* state = nullptr;
  bool resume = false;
  bool more = false;  // `out` is not written, and `kv` is not read.
};

inline constexpr int64_t kAttentionTile = 64;  // Keys per tile.

// Keys [first, first + count) of a head of `kv`. Row r sees the first min(count, row0_sees + r) of
// them, or none if that is not positive.
struct KeyTile {
  const PagedKv& kv;
  int64_t head;
  int64_t first;
  int64_t count;
  int64_t row0_sees;

  // The first row that sees a key of the tile.
  int64_t first_row() const { return row0_sees > 0 ? 0 : 1 - row0_sees; }
  int64_t Visible(int64_t row) const { return row0_sees + row < count ? row0_sees + row : count; }
};

// Calls use(tile) for all tiles, in order: those of the prefix, whose last one may be short, then
// those of the sequence.
template <typename Use>
void ForEachKeyTile(const AttentionArgs& a, Use&& use) {
  const auto count = [](int64_t left) { return left < kAttentionTile ? left : kAttentionTile; };
  for (int64_t t = 0; t < a.prefix_rows; t += kAttentionTile) {
    const int64_t n = count(a.prefix_rows - t);
    use(KeyTile{a.prefix, 0, t, n, n});
  }
  if (a.more) return;
  const int64_t end = a.first_position + a.rows;
  for (int64_t t = 0; t < end; t += kAttentionTile) {
    use(KeyTile{a.kv, a.kv_head, t, count(end - t), a.first_position - t + 1});
  }
}

constexpr size_t AttentionScratchBytes(int64_t rows, int64_t group, int64_t head_dim) {
  const int64_t queries = (rows * group + 31) / 32 * 32;
  const int64_t width = (head_dim + 31) / 32 * 32;
  // Queries, outputs, scores; keys and values of a tile; maximum and sum of each query.
  return static_cast<size_t>(queries * (2 * width + kAttentionTile + 4) * 4 +
                             kAttentionTile * width * 4 * 4 + 32 * kAttentionTile * 8) +
         8192;
}

constexpr size_t AttentionStateBytes(int64_t rows, int64_t group, int64_t head_dim) {
  const int64_t queries = (rows * group + 31) / 32 * 32;
  // Outputs; maximum of each query, and its sum in up to 16 lanes.
  return static_cast<size_t>(queries * ((head_dim + 31) / 32 * 32 + 17) * 4 + 192);
}

// Attention over tokens [begin, end) only, for flash-decoding: splits of fixed length are computed
// by different threads, then merged in order. Several rows may attend to the same tokens, which are
// then read once for all of them (the shared phase of ChunkAttention, Ye et al. 2024, section 3.2).
// The result of a row is the same as if it were computed alone.
struct AttentionPartArgs {
  PagedKv kv;
  const float* q = nullptr;  // Row 0: query head kv_head * group + g at the head's offset.
  int64_t rows = 1;
  int64_t q_stride = 0;    // Numbers from one row's queries to the next one's.
  int64_t row_stride = 0;  // Heads from one row's results to the next one's, in acc, max and sum.
  int64_t kv_head = 0;
  int64_t group = 1;
  int64_t begin = 0;
  int64_t end = 0;
  float scale = 1.0f;
  float* acc = nullptr;          // For each row, [group][head_dim]: sum of exp(score - max) * V
  float* max = nullptr;          // For each row, [group]; -infinity when begin == end
  float* sum = nullptr;          // For each row, [group]: sum of exp(score - max)
  std::byte* scratch = nullptr;  // AttentionPartScratchBytes(...), 64-byte aligned.
};

inline constexpr int64_t kAttentionPartTile = 32;  // Tokens that are widened at a time.

// `queries`: rows * group.
constexpr size_t AttentionPartScratchBytes(int64_t tokens, int64_t queries, int64_t head_dim) {
  // Scores, the largest ones by lane, a tile of keys or values.
  return static_cast<size_t>(((tokens + 31) / 32 * 32 + 16) * queries +
                             kAttentionPartTile * head_dim) *
             sizeof(float) +
         64;
}

// out[g] = sum over parts of acc * exp(max - common max), divided by the sum likewise.
struct AttentionMergeArgs {
  const float* acc = nullptr;  // [parts][group][head_dim]
  const float* max = nullptr;  // [parts][group]
  const float* sum = nullptr;  // [parts][group]
  float* out = nullptr;        // [group][head_dim]
  int64_t parts = 0;           // At least 1, and at least one part has a token.
  int64_t group = 1;
  int64_t head_dim = 0;
};

}  // namespace cairn::kernels
