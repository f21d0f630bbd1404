#define CAIRN_KERNEL_NS selection_portable
#include "kernels/cpu/selection/selection.inc.h"

namespace cairn::kernels {

SelectionKernels MakePortableSelectionKernels() { return selection_portable::Table("portable"); }

}  // namespace cairn::kernels
