#pragma once
// The implementations of the operations: a table of plain functions for each instruction set.
//
// Functions are pure: they touch only what their arguments name, allocate nothing, start no threads
// and may be called from any thread. reference/ is the definition, never tuned; cpu/ is compared
// with it by tests/conformance/kernels.

#include "cairn/kernels/attention.h"
#include "cairn/kernels/elementwise.h"
#include "cairn/kernels/isa.h"
#include "cairn/kernels/linear.h"

namespace cairn::kernels {

struct ForwardKernels {
  // "reference", or Name(isa).
  const char* name = nullptr;

  void (*rms_norm)(const RmsNormArgs&) = nullptr;
  void (*rope)(const RopeArgs&) = nullptr;
  void (*swiglu)(const SwiGluArgs&) = nullptr;
  void (*to_half)(const ToHalfArgs&) = nullptr;
  void (*from_half)(const FromHalfArgs&) = nullptr;
  void (*to_bf16)(const ToBfloat16Args&) = nullptr;
  // Index of the largest number; the lowest index among equals. NaN never wins. -1 when n = 0 or
  // all are NaN.
  int64_t (*arg_max)(const float* x, int64_t n) = nullptr;

  // Rounds a row of `cols` activations (padded with zeros to a full step) for MatVecArgs. The bytes
  // are for these kernels only. Finite input. Null: only float products are implemented.
  void (*prepare_activation)(const float* x, int64_t cols, std::byte* activation) = nullptr;
  void (*mat_vec)(const MatVecArgs&) = nullptr;
  void (*gemm_f32)(const GemmArgs&) = nullptr;
  // Null: there is no hardware for bfloat16, and the caller uses gemm_f32.
  void (*gemm_bf16)(const GemmArgs&) = nullptr;

  void (*attention_f32)(const AttentionArgs&) = nullptr;
  // Null: there are no tiles. SupportsBf16Attention says for which shapes it may be called.
  void (*attention_bf16)(const AttentionArgs&) = nullptr;
  void (*attention_part)(const AttentionPartArgs&) = nullptr;
  void (*attention_merge)(const AttentionMergeArgs&) = nullptr;
};

inline bool SupportsBf16Attention(const ForwardKernels& kernels, int64_t head_dim) {
  return kernels.attention_bf16 != nullptr && head_dim % 32 == 0 && head_dim <= 256;
}

const ForwardKernels& ReferenceForwardKernels();
// REQUIRES: Supports(isa).
const ForwardKernels& CpuForwardKernels(Isa isa);

}  // namespace cairn::kernels
