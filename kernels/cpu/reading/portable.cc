#define CAIRN_KERNEL_NS reading_portable
#include "kernels/cpu/reading/reading.inc.h"

namespace cairn::kernels {

ReadingKernels MakePortableReadingKernels() { return reading_portable::Table("portable"); }

}  // namespace cairn::kernels
