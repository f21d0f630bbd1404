// All float32 kernels, for the instruction set and namespace of the including file.

// clang-format off
#include "kernels/cpu/vec.h"
#include "cairn/kernels/forward_kernels.h"

// These three need the namespace macro and each other, in this order.
#include "kernels/cpu/elementwise.inc.h"
#include "kernels/cpu/linear.inc.h"
#include "kernels/cpu/attention.inc.h"
// clang-format on

namespace cairn::kernels::CAIRN_KERNEL_NS {

static ForwardKernels FloatKernels(const char* name) {
  ForwardKernels k;
  k.name = name;
  k.rms_norm = RmsNorm;
  k.rope = Rope;
  k.swiglu = SwiGlu;
  k.to_half = ToHalf;
  k.from_half = FromHalf;
  k.to_bf16 = ToBfloat16;
  k.arg_max = ArgMax;
  k.mat_vec = MatVecFloat;
  k.gemm_f32 = GemmFloat;
  k.attention_f32 = AttentionFloat;
  k.attention_part = AttentionPart;
  k.attention_merge = AttentionMerge;
  return k;
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
