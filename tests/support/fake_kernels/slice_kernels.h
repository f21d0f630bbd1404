#pragma once
// CUDA kernels of codecs, hashes and moves of pages for the fake device, of many slices at a time.
// Each kernel of an operation is a piece of work that happens late. The device knows all that the
// operation reads and writes, since the lists are the host's.

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
