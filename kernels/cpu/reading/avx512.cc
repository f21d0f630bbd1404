#define CAIRN_KERNEL_NS reading_avx512
#include "kernels/cpu/reading/reading.inc.h"

namespace cairn::kernels {

ReadingKernels MakeAvx512ReadingKernels() { return reading_avx512::Table("avx512"); }

}  // namespace cairn::kernels
