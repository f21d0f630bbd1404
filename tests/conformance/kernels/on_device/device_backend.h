#pragma once
// A device of common/device as a backend: memory, streams and tables of kernels come from a library
// that is loaded at run time. With libcairn_cuda.so the suites run on a GPU, with the fake device
// and libcairn_fake_kernels.so over the emulation, by the same code.

#include <string>

#include "cairn/common/status.h"
#include "cairn/kernels/backend.h"

namespace cairn::kernels::testing {

inline constexpr char kDeviceBackend[] = "on-device";

// The backend "on-device": batches of the forward pass, slices, selections of units, and over these
// single heads. Families whose table the library lacks are missing in it. One device in a process;
// lives as long as that. Errors are those of Driver::Load and Driver::Open.
Result<const Backend*> OpenDeviceBackend(const std::string& library, uint32_t ordinal);

}  // namespace cairn::kernels::testing
