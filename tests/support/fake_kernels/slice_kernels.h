#pragma once
// The codecs' CUDA kernels for the fake device: as forward_kernels.h. The device knows all that a
// launch reads and writes, since the lists are the host's.

#include <cstdint>

#include "cairn/kernels/batch/slice_table.h"
#include "tests/support/fake_device/control.h"

namespace cairn::kernels::testing {

// Makes the device find them under their name and version, until it is reset.
void AddSliceKernels(const device::fake::FakeControl& control);
// Slices that launches have decoded and encoded in this process.
uint64_t DecodedSlices();
uint64_t EncodedSlices();

}  // namespace cairn::kernels::testing
