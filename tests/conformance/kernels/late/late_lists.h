#pragma once
// The tables of the late backend whose operations take lists: a launch copies the list, and the
// addresses in it are those of the backend's memory.

#include "cairn/kernels/codec/slice_kernels.h"
#include "cairn/kernels/selection/unit_kernels.h"

namespace cairn::kernels::testing {

// The entries are those of the reference.
const SelectionUnitKernels& LateSelectionUnitKernels();
const SliceKernels& LateSliceKernels();

}  // namespace cairn::kernels::testing
