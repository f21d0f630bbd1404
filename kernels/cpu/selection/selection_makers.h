#pragma once
// One maker per translation unit of this folder. Each architecture compiles its own of them. Call
// only where Supports(isa).

#include "cairn/kernels/selection/selection_kernels.h"

namespace cairn::kernels {

SelectionKernels MakePortableSelectionKernels();
SelectionKernels MakeNeonSelectionKernels();
SelectionKernels MakeAvx2SelectionKernels();
SelectionKernels MakeAvx512SelectionKernels();

}  // namespace cairn::kernels
