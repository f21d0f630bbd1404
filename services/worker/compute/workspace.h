#pragma once
// The activations of one forward pass, and the scratch memory of its threads.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "cairn/kernels/forward_kernels.h"
#include "model/model.h"

namespace cairn::worker {

// 64-byte aligned, zeroed memory.
template <typename T>
class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(size_t n)
      : bytes_(n * sizeof(T) + 64),
        data_(static_cast<T*>(::operator new (bytes_, std::align_val_t{64}))) {
    std::memset(static_cast<void*>(data_.get()), 0, bytes_);
  }
  T* get() const { return data_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  size_t bytes_ = 0;
  std::unique_ptr<T, Free> data_;
};

// A product's input in the forms that kernels read: [rows][stride], zero beyond the width.
struct MatrixInput {
  MatrixInput(int64_t max_rows, int64_t width);

  float* row(int64_t r) { return x.get() + r * stride; }
  uint16_t* bf16_row(int64_t r) { return bf16.get() + r * stride; }
  size_t bytes() const { return x.bytes() + bf16.bytes() + activation.bytes(); }
  std::byte* activation_row(int64_t r) { return activation.get() + r * activation_stride; }

  int64_t width;
  int64_t stride;             // A multiple of a step.
  int64_t activation_stride;  // Bytes.
  AlignedArray<float> x;
  AlignedArray<uint16_t> bf16;
  AlignedArray<std::byte> activation;
};

struct Workspace {
  // Tokens of a split of decode attention. The number is fixed, because the place where a sum is
  // cut decides its last bits.
  static constexpr int64_t kSplitTokens = 256;
  // Most rows that one piece of prefill attention takes.
  static constexpr int64_t kAttentionRows = 64;
  // Most decode rows that one piece reads common pages for.
  static constexpr int64_t kSharedRows = 16;
  // Most rows of one product with the output matrix.
  static constexpr int64_t kLogitsRows = 16;

  Workspace(const model::Hyperparameters& hp, int64_t max_rows, int threads);

  // The bytes of all arrays but those of decode attention, which are short.
  size_t bytes() const;

  std::byte* thread_scratch(int thread) {
    return scratch.get() + static_cast<size_t>(thread) * scratch_bytes;
  }

  AlignedArray<float> x;             // [rows][hidden]: the residual stream
  MatrixInput normed;                // The normed rows of hidden.
  MatrixInput attended;              // Rows of heads * head_dim: output of attention.
  MatrixInput activated;             // Rows of ffn: silu(gate) * up; gate is computed in place.
  AlignedArray<float> q, k, v;       // [rows][heads or kv_heads * head_dim]
  AlignedArray<float> up;            // [rows][activated.stride]
  AlignedArray<float> cosine, sine;  // [rows][rope_dim / 2]

  // Decode attention, per part of each row: [heads][head_dim], [heads], [heads].
  std::vector<float> part_acc, part_max, part_sum;
  std::vector<float> logits;  // [kLogitsRows][vocab], of rows whose logits go to different places.

  size_t scratch_bytes;
  AlignedArray<std::byte> scratch;
};

// The memory that a wide chunk needs in addition to the workspace, for all of its rows.
struct WideRows {
  WideRows(const model::Hyperparameters& hp, int64_t rows);

  // The bytes for `rows` rows.
  static size_t Bytes(const model::Hyperparameters& hp, int64_t rows);

  AlignedArray<float> x;             // [rows][hidden]: the residual stream
  AlignedArray<float> cosine, sine;  // [rows][rope_dim / 2]
};

}  // namespace cairn::worker
