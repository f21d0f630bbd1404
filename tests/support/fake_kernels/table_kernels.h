#pragma once
// The other CUDA kernels for the fake device: codecs, hashes, moves of pages and selections, of
// many slices or units at a time. Each kernel of an operation is a piece of work that happens late.
//
// The device does not know what these launches read and write, so that a missing wait shows in the
// numbers alone.

#include "tests/support/fake_device/control.h"

namespace cairn::kernels::testing {

// Makes the device find the tables of slices, of heads and of units, and that of the forward pass
// for compute capability 9.0, until it is reset.
void AddTableKernels(const device::fake::FakeControl& control);

}  // namespace cairn::kernels::testing
