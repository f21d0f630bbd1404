#pragma once
// The operations of a forward pass: a table of functions for each backend (backend.h).
//
// A function launches its operation on the stream (stream.h says what that means). Functions touch
// only what their arguments name, and the kernels of CPUs allocate nothing, start no threads and
// may be called from any thread. reference/ is the definition, never tuned; all others are compared
// with it by tests/conformance/kernels.

#include "cairn/kernels/attention.h"
#include "cairn/kernels/elementwise.h"
#include "cairn/kernels/isa.h"
#include "cairn/kernels/linear.h"
#include "cairn/kernels/stream.h"

namespace cairn::kernels {

struct ForwardKernels {
  // "reference", Name(isa), or the name of another backend.
  const char* name = nullptr;

  void (*rms_norm)(Stream&, const RmsNormArgs&) = nullptr;
  void (*rope)(Stream&, const RopeArgs&) = nullptr;
  void (*swiglu)(Stream&, const SwiGluArgs&) = nullptr;
  void (*to_half)(Stream&, const ToHalfArgs&) = nullptr;
  void (*from_half)(Stream&, const FromHalfArgs&) = nullptr;
  void (*to_bf16)(Stream&, const ToBfloat16Args&) = nullptr;
  void (*arg_max)(Stream&, const ArgMaxArgs&) = nullptr;

  // Null: only float products are implemented.
  void (*prepare_activation)(Stream&, const PrepareActivationArgs&) = nullptr;
  void (*mat_vec)(Stream&, const MatVecArgs&) = nullptr;
  void (*gemm_f32)(Stream&, const GemmArgs&) = nullptr;
  // Null: there is no hardware for bfloat16, and the caller uses gemm_f32.
  void (*gemm_bf16)(Stream&, const GemmArgs&) = nullptr;

  void (*attention_f32)(Stream&, const AttentionArgs&) = nullptr;
  // Null: there are no tiles. SupportsBf16Attention says for which shapes it may be called.
  void (*attention_bf16)(Stream&, const AttentionArgs&) = nullptr;
  void (*attention_part)(Stream&, const AttentionPartArgs&) = nullptr;
  void (*attention_merge)(Stream&, const AttentionMergeArgs&) = nullptr;
};

inline bool SupportsBf16Attention(const ForwardKernels& kernels, int64_t head_dim) {
  return kernels.attention_bf16 != nullptr && head_dim % 32 == 0 && head_dim <= 256;
}

const ForwardKernels& ReferenceForwardKernels();
// REQUIRES: Supports(isa).
const ForwardKernels& CpuForwardKernels(Isa isa);

}  // namespace cairn::kernels
