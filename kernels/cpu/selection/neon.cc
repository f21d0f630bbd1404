#define CAIRN_KERNEL_NS selection_neon
#define CAIRN_NEON
#include "kernels/cpu/selection/selection.inc.h"

namespace cairn::kernels {

SelectionKernels MakeNeonSelectionKernels() { return selection_neon::Table("neon"); }

}  // namespace cairn::kernels
