#pragma once
// The selection kernels of kernels/cuda, run on the CPU.

#include "cairn/kernels/selection/unit_kernels.h"

namespace cairn::kernels::testing {

// A call of an entry of the first table is a launch for one unit.
const SelectionKernels& EmulatedSelectionKernels();
const SelectionUnitKernels& EmulatedSelectionUnitKernels();

}  // namespace cairn::kernels::testing
