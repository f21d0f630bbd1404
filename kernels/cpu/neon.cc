// The same float32 kernels as portable.cc, whose vectors are NEON's already. They differ in how
// halves are converted, and in how many sums stay in registers.
#define CAIRN_KERNEL_NS neon
#define CAIRN_NEON
#include "kernels/cpu/forward_makers.h"
#include "kernels/cpu/kernels.inc.h"

namespace cairn::kernels {

ForwardKernels MakeNeonForwardKernels() { return neon::FloatKernels("neon"); }

}  // namespace cairn::kernels
