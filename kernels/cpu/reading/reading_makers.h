#pragma once
// One maker per translation unit of this folder. Call only where Supports(isa).

#include "cairn/kernels/reading/reading_kernels.h"

namespace cairn::kernels {

ReadingKernels MakePortableReadingKernels();
ReadingKernels MakeAvx2ReadingKernels();
ReadingKernels MakeAvx512ReadingKernels();

}  // namespace cairn::kernels
