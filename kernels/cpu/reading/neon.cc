#define CAIRN_KERNEL_NS reading_neon
#define CAIRN_NEON
#include "kernels/cpu/reading/reading.inc.h"

namespace cairn::kernels {

ReadingKernels MakeNeonReadingKernels() { return reading_neon::Table("neon"); }

}  // namespace cairn::kernels
