#pragma once
// One maker per translation unit of this folder. Each architecture compiles its own of them. Call
// only where Supports(isa).

#include "cairn/kernels/reading/reading_kernels.h"

namespace cairn::kernels {

ReadingKernels MakePortableReadingKernels();
ReadingKernels MakeNeonReadingKernels();
ReadingKernels MakeAvx2ReadingKernels();
ReadingKernels MakeAvx512ReadingKernels();

}  // namespace cairn::kernels
