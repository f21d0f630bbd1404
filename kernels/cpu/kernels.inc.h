// All float32 kernels, for the instruction set and namespace of the including file.

// clang-format off
#include "kernels/cpu/vec.inc.h"
#include "cairn/kernels/forward_kernels.h"
#include "cairn/kernels/inline_op.h"

// These need the namespace macro and each other, in this order.
#include "kernels/cpu/elementwise.inc.h"
#include "kernels/cpu/register_blocks.inc.h"
#include "kernels/cpu/linear.inc.h"
#include "kernels/cpu/attention.inc.h"
// clang-format on

namespace cairn::kernels::CAIRN_KERNEL_NS {

static ForwardKernels FloatKernels(const char* name) {
  ForwardKernels k;
  k.name = name;
  k.rms_norm = InlineOp<RmsNorm>::Run;
  k.rope = InlineOp<Rope>::Run;
  k.swiglu = InlineOp<SwiGlu>::Run;
  k.to_half = InlineOp<ToHalf>::Run;
  k.from_half = InlineOp<FromHalf>::Run;
  k.to_bf16 = InlineOp<ToBfloat16>::Run;
  k.arg_max = InlineOp<ArgMax>::Run;
  k.mat_vec = InlineOp<MatVecFloat>::Run;
  k.gemm_f32 = InlineOp<GemmFloat>::Run;
  k.attention_f32 = InlineOp<AttentionFloat>::Run;
  k.attention_part = InlineOp<AttentionPart>::Run;
  k.attention_merge = InlineOp<AttentionMerge>::Run;
  return k;
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
