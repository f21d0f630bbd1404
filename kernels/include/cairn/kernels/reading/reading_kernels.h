#pragma once
// Kernels for decoding over a context of which only a copy in few bits is near: a table of
// functions for each backend (backend.h).
//
// A step of one KV head goes through them in this order:
//
//   row_logits   the queries' logits with all rows, from the keys of the copy
//   top_rows     which rows to read exactly
//   attend_rows  attention over the rows of the copy that are not read: a part, as those of
//                AttentionPartArgs
//   ForwardKernels::attention_part over the exact rows, and over the tokens' own;
//   ForwardKernels::attention_merge puts the parts together
//
// A row counts as what its codec decodes, before it is rounded to binary16. Results are bounded
// against reference/, not equal. A function launches its operation on the stream (stream.h says
// what that means). The kernels of CPUs allocate nothing, start no threads, and may be called from
// any thread.

#include <cstddef>
#include <cstdint>

#include "cairn/kernels/codec/codec_kernels.h"
#include "cairn/kernels/isa.h"
#include "cairn/kernels/stream.h"

namespace cairn::kernels {

// How a row is stored. Each but kHalf is a codec that stores token by token
// (codec/codec_kernels.h).
enum class CopyForm : uint8_t { kHalf, kInt8, kInt4, kTurbo };

// Neighbouring columns with a scale of their own, of kInt8 and kInt4.
inline constexpr int64_t kCopyGroup = 64;

// Keys or values of one KV head, one row after the other. REQUIRES: a dim that the codec can store,
// at most kMaxHeadDim; kHalf: 1 to 2 * kMaxHeadDim.
struct CopyRows {
  CopyForm form = CopyForm::kHalf;
  int bits = 3;  // kTurbo.
  int64_t dim = 0;
  const uint32_t* signs = nullptr;  // kTurbo: TurboParams::signs.
  const std::byte* data = nullptr;

  constexpr int64_t row_bytes() const {
    switch (form) {
      case CopyForm::kInt8:
        return Int8RowBytes(dim, kCopyGroup);
      case CopyForm::kInt4:
        return Int4TokenRowBytes(dim, kCopyGroup);
      case CopyForm::kTurbo:
        return TurboRowBytes(dim, bits);
      case CopyForm::kHalf:
        break;
    }
    return 2 * dim;
  }
  const std::byte* row(int64_t r) const { return data + r * row_bytes(); }
};

// The queries of the group, and a tile of rows. 64-byte aligned.
inline constexpr int64_t kCopyTile = 16;
constexpr size_t ReadingScratchBytes(int64_t group, int64_t dim) {
  return static_cast<size_t>((group + kCopyTile) * ((dim + 15) / 16 * 16)) * sizeof(float);
}

// logits[g * stride + r] = scale * q_g . keys[r], for rows [begin, end).
struct RowLogitsArgs {
  CopyRows keys;
  const float* q = nullptr;  // [group][q_stride], `dim` numbers each.
  int64_t q_stride = 0;
  int64_t group = 1;
  int64_t begin = 0;
  int64_t end = 0;
  float scale = 1.0f;
  float* logits = nullptr;  // [group][stride]
  int64_t stride = 0;
  std::byte* scratch = nullptr;  // ReadingScratchBytes(group, dim)
};

// scores[r] = the largest over the group of softmax(logits_g)[r]; rows = the min(count, n) rows of
// the largest scores, ascending. If scores are equal, the lower rows come first. REQUIRES: no logit
// is NaN or +infinity, and each head has one that is not -infinity.
struct TopRowsArgs {
  const float* logits = nullptr;  // [group][stride]
  int64_t stride = 0;
  int64_t group = 1;
  int64_t n = 0;
  int64_t count = 0;
  float* scores = nullptr;       // [n]
  int32_t* rows = nullptr;       // [min(count, n)]
  std::byte* scratch = nullptr;  // TopRowsScratchBytes(n), 64-byte aligned.
};
constexpr size_t TopRowsScratchBytes(int64_t n) {
  return static_cast<size_t>((n + 15) / 16 * 16) * sizeof(float) + 2048 * sizeof(int32_t);
}

// A part of attention over rows [begin, end): max[g] the largest logit, sum[g] = sum of
// exp(logit - max), acc[g] = sum of exp(logit - max) * values[r]. A logit of -infinity takes its
// row out. If all are: max[g] = -infinity, sum[g] = 0. The logits are overwritten.
struct AttendRowsArgs {
  CopyRows values;
  float* logits = nullptr;  // [group][stride]
  int64_t stride = 0;
  int64_t group = 1;
  int64_t begin = 0;
  int64_t end = 0;
  float* acc = nullptr;          // [group][dim]
  float* max = nullptr;          // [group]
  float* sum = nullptr;          // [group]
  std::byte* scratch = nullptr;  // ReadingScratchBytes(group, dim)
};

struct ReadingKernels {
  // "reference", Name(isa), or the name of another backend.
  const char* name = nullptr;

  void (*row_logits)(Stream&, const RowLogitsArgs&) = nullptr;
  void (*top_rows)(Stream&, const TopRowsArgs&) = nullptr;
  void (*attend_rows)(Stream&, const AttendRowsArgs&) = nullptr;
};

// The definition, in plain loops.
const ReadingKernels& ReferenceReadingKernels();
// REQUIRES: Supports(isa). Instruction sets beyond kAvx512 have kAvx512's.
const ReadingKernels& CpuReadingKernels(Isa isa);

}  // namespace cairn::kernels
