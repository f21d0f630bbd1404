#pragma once
// Operations on the rows of a batch: embeddings, norms, rotations, activations, weights and the
// choice of a token. The rules of forward_kernels.h in this folder hold for all of them.

#include <cstddef>
#include <cstdint>

#include "cairn/kernels/weight_types.h"

namespace cairn::kernels::batch {

// Row r of x is row tokens[r] of the embedding, as DequantiseRow gives it.
struct EmbedArgs {
  WeightType type = WeightType::kF32;
  const std::byte* table = nullptr;  // [vocab][RowBytes(type, cols)], at any address.
  const int32_t* tokens = nullptr;   // [rows]. REQUIRES: each is a row of the table.
  float* x = nullptr;                // [rows][x_stride]
  int64_t rows = 0;
  int64_t cols = 0;  // REQUIRES: a multiple of BlockElements(type).
  int64_t x_stride = 0;
};

// Row r of `out` is row source_rows[r] of the matrix (or row r), rounded to bfloat16.
struct DequantiseArgs {
  WeightType type = WeightType::kF32;
  const std::byte* matrix = nullptr;     // [RowBytes(type, cols)] each, at any address.
  const int32_t* source_rows = nullptr;  // [rows]; null: as they are.
  uint16_t* out = nullptr;               // [rows][out_stride]
  int64_t rows = 0;
  int64_t cols = 0;  // REQUIRES: a multiple of BlockElements(type).
  int64_t out_stride = 0;
};

// y = x * weight / sqrt(mean(x^2) + eps), in float32, then rounded to bfloat16.
struct RmsNormArgs {
  const float* x = nullptr;              // [..][x_stride]
  const int32_t* source_rows = nullptr;  // [rows]: row r of y is made of this row of x. Null: r.
  const float* weight = nullptr;         // [cols]
  uint16_t* y = nullptr;                 // [rows][y_stride]
  int64_t rows = 0;
  int64_t cols = 0;  // REQUIRES: a multiple of 8.
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  float eps = 1e-5f;
};

// x += y, in float32.
struct AddArgs {
  float* x = nullptr;
  const float* y = nullptr;
  int64_t n = 0;
};

// y = silu(gate) * up in float32, then rounded to bfloat16; silu(g) = g / (1 + exp(-g)).
struct SwiGluArgs {
  const float* gate = nullptr;  // [rows][in_stride]
  const float* up = nullptr;    // [rows][in_stride]: may be the other half of gate's rows.
  uint16_t* y = nullptr;        // [rows][y_stride]
  int64_t rows = 0;
  int64_t cols = 0;  // REQUIRES: a multiple of 8.
  int64_t in_stride = 0;
  int64_t y_stride = 0;
};

// Where the key and the value of a row go, and by how much its key and query are rotated.
struct KvPlace {
  std::byte* page = nullptr;
  int32_t token = 0;     // The token's place in the page.
  int32_t position = 0;  // A row of the tables of cosines and sines.
};

// Rotates queries and keys (half-split, as kernels::RopeArgs says; each product and each sum is
// rounded to float32), rounds queries, keys and values to binary16, and writes keys and values to
// their pages. Head h of K of token t lies at page + k_offset + h * head_stride + t * head_dim * 2.
struct RotateAndStoreArgs {
  const float* q = nullptr;  // [rows][in_stride], heads of head_dim each.
  const float* k = nullptr;  // The same stride: may be columns of the same matrix.
  const float* v = nullptr;
  uint16_t* q_out = nullptr;  // [rows][heads * head_dim]
  const KvPlace* places = nullptr;
  const float* cosine = nullptr;  // [positions][rope_dim / 2]
  const float* sine = nullptr;
  int64_t rows = 0;
  int64_t in_stride = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t rope_dim = 0;  // Even, at most head_dim.
  size_t k_offset = 0;
  size_t v_offset = 0;
  size_t head_stride = 0;
};

// Keys of one head that move by the same number of positions.
struct KeyRun {
  uint16_t* keys = nullptr;  // Binary16, key i at keys + i * stride.
  int64_t stride = 0;
  int32_t count = 0;
  int32_t turn = 0;  // A row of the tables: the cosines and sines of the angles to turn by.
};

// Rotates stored keys further, in place: widened to float32, rotated as above, rounded to binary16.
// A key that was rotated for position p and is turned by the angles of d positions is one for
// p + d, but for one more rounding.
struct TurnKeysArgs {
  const KeyRun* runs = nullptr;
  int64_t count = 0;
  int64_t most_keys = 0;          // The most keys of a run; REQUIRES: at most 65535 * 8.
  const float* cosine = nullptr;  // [turns][rope_dim / 2]
  const float* sine = nullptr;
  int32_t rope_dim = 0;
};

// index[r] = the place of the row's largest number; the lowest among equals. NaN never wins. -1 if
// n = 0 or all are NaN.
struct ArgMaxArgs {
  const float* x = nullptr;  // [rows][stride]
  int32_t* index = nullptr;  // [rows]
  int64_t rows = 0;
  int64_t n = 0;
  int64_t stride = 0;
};

}  // namespace cairn::kernels::batch
