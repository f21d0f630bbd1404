#pragma once
// The other CUDA kernels for the fake device: selections of many units at a time, and codecs of
// single heads. Each kernel of an operation is a piece of work that happens late.
//
// The device does not know what these launches read and write, so that a missing wait shows in the
// numbers alone.

#include "tests/support/fake_device/control.h"

namespace cairn::kernels::testing {

// Makes the device find the tables of heads and of units, and that of the forward pass for compute
// capability 9.0, until it is reset.
void AddTableKernels(const device::fake::FakeControl& control);

}  // namespace cairn::kernels::testing
