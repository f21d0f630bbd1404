#define CAIRN_KERNEL_NS reading_avx2
#include "kernels/cpu/reading/reading.inc.h"

namespace cairn::kernels {

ReadingKernels MakeAvx2ReadingKernels() { return reading_avx2::Table("avx2"); }

}  // namespace cairn::kernels
