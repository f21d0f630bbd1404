#define CAIRN_KERNEL_NS selection_avx512
#include "kernels/cpu/selection/selection.inc.h"

namespace cairn::kernels {

SelectionKernels MakeAvx512SelectionKernels() { return selection_avx512::Table("avx512"); }

}  // namespace cairn::kernels
