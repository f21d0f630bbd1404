// All float32 kernels, for the instruction set and namespace of the including file.

// clang-format off
#include "kernels/cpu/vec.inc.h"
#include "cairn/kernels/backend.h"

// These three need the namespace macro and each other, in this order.
#include "kernels/cpu/elementwise.inc.h"
#include "kernels/cpu/linear.inc.h"
#include "kernels/cpu/attention.inc.h"
// clang-format on

namespace cairn::kernels::CAIRN_KERNEL_NS {

static Backend FloatBackend(const char* name) {
  Backend b;
  b.name = name;
  b.rms_norm = RmsNorm;
  b.rope = Rope;
  b.swiglu = SwiGlu;
  b.to_half = ToHalf;
  b.from_half = FromHalf;
  b.to_bf16 = ToBfloat16;
  b.arg_max = ArgMax;
  b.mat_vec = MatVecFloat;
  b.gemm_f32 = GemmFloat;
  b.attention_f32 = AttentionFloat;
  b.attention_part = AttentionPart;
  b.attention_merge = AttentionMerge;
  return b;
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
