#define CAIRN_KERNEL_NS selection_avx2
#include "kernels/cpu/selection/selection.inc.h"

namespace cairn::kernels {

SelectionKernels MakeAvx2SelectionKernels() { return selection_avx2::Table("avx2"); }

}  // namespace cairn::kernels
