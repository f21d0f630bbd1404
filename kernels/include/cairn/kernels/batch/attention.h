#pragma once
// Causal softmax attention of a whole batch over paged binary16 keys and values, with grouped
// queries. Before a sequence's own tokens there may be a ragged prefix: the rows that a selection
// kept, with a different number for each layer and head (kernels/attention.h has the same for one
// head). The rules of forward_kernels.h in this folder hold here, too. Keys and values are finite:
// an infinite value could make NaN of rows that do not see it.

#include <cstddef>
#include <cstdint>

namespace cairn::kernels::batch {

// How all sequences of a call keep one layer. Token t of a sequence is token t % block_tokens of
// its page t / block_tokens. Inside a page, K of head h begins at k_offset + h * head_stride bytes:
// [block_tokens][head_dim]. In a unit of a prefix, K begins at the unit's address:
// [unit_rows][head_dim].
struct KvForm {
  int32_t kv_heads = 0;
  int32_t group = 1;          // Query heads of a KV head.
  int32_t head_dim = 0;       // REQUIRES: 64 or 128.
  int32_t block_tokens = 64;  // REQUIRES: a multiple of 16.
  size_t k_offset = 0;        // Offsets and strides: multiples of 16.
  size_t v_offset = 0;
  size_t head_stride = 0;
  int32_t layer = 0;       // The layer whose lists of the prefixes are read.
  int32_t unit_rows = 32;  // REQUIRES: a multiple of 16.
  size_t unit_v_offset = 0;
};

// The rows of one head of one layer that a selection kept: row r in unit r / unit_rows.
struct KeptRows {
  const std::byte* const* units = nullptr;
  int64_t rows = 0;
};

struct SequenceKv {
  const std::byte* const* pages = nullptr;
  const KeptRows* prefix = nullptr;  // [layers][kv_heads]; null: there is none.
  int64_t tokens = 0;                // In the pages.
};

inline constexpr int64_t kSplitKeys = 512;

// Splits of kSplitKeys keys for a head with `kept_rows` kept rows and `tokens` tokens. Prefix and
// tokens are split apart.
constexpr int64_t SplitsOf(int64_t kept_rows, int64_t tokens) {
  return (kept_rows + kSplitKeys - 1) / kSplitKeys + (tokens + kSplitKeys - 1) / kSplitKeys;
}

// One row for each sequence, which attends to all of the sequence's tokens, its own among them. A
// sequence without tokens and prefix gets zeros. Splits are added up in order.
struct DecodeAttentionArgs {
  KvForm kv;
  const SequenceKv* sequences = nullptr;  // [rows]
  const uint16_t* q = nullptr;            // [rows][q_stride], binary16: heads of head_dim each.
  uint16_t* out = nullptr;                // [rows][out_stride], bfloat16.
  int64_t rows = 0;                       // REQUIRES: at most 65535.
  int64_t q_stride = 0;
  int64_t out_stride = 0;
  int64_t most_splits = 0;  // REQUIRES: at least SplitsOf each head of each sequence.
  float scale = 1.0f;
  float* scratch = nullptr;  // DecodeScratchFloats of them.
};

// For each split of each head of each row: the sum of weighted values, the maximum, the sum.
constexpr int64_t DecodeScratchFloats(int64_t rows, int64_t most_splits, const KvForm& kv) {
  return rows * most_splits * kv.kv_heads * kv.group * (kv.head_dim + 2);
}

// Some rows of one prompt: row i of the chunk is row first_row + i of q and out, and is the
// sequence's token kv.tokens + i. It attends to the prefix and to tokens 0 to kv.tokens + i, whose
// keys and values are in the pages.
struct PromptChunk {
  SequenceKv kv;
  int64_t first_row = 0;
  int64_t rows = 0;
};

struct PromptAttentionArgs {
  KvForm kv;
  const PromptChunk* chunks = nullptr;  // [count]
  int64_t count = 0;                    // REQUIRES: at most 65535.
  int64_t most_rows = 0;                // REQUIRES: at least those of each chunk.
  const uint16_t* q = nullptr;          // [..][q_stride], binary16.
  uint16_t* out = nullptr;              // [..][out_stride], bfloat16.
  int64_t q_stride = 0;
  int64_t out_stride = 0;
  float scale = 1.0f;
};

// The same by the tensor memory accelerator, which wants to know in which memory pages and units
// lie: at multiples of head_dim * 2 bytes from `pool` on.
struct PooledPromptAttentionArgs {
  PromptAttentionArgs attention;
  const std::byte* pool = nullptr;
  uint64_t pool_bytes = 0;
};

}  // namespace cairn::kernels::batch
