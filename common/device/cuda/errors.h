#pragma once
// The meaning of CUDA's error numbers for users of a device. Runtime and driver share the numbers.

#include "common/device/driver_table.h"

namespace cairn::device::cuda {

Code CodeOf(int error);

// The code of a runtime's error, and its text in `failure`.
Code Say(int error, Failure* failure);
Code Say(Code code, const char* text, Failure* failure);

}  // namespace cairn::device::cuda
