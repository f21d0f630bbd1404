#define CAIRN_KERNEL_NS portable
#include "kernels/cpu/forward_makers.h"
#include "kernels/cpu/kernels.inc.h"

namespace cairn::kernels {

ForwardKernels MakePortableForwardKernels() { return portable::FloatKernels("portable"); }

}  // namespace cairn::kernels
