#pragma once
// The forward pass's CUDA kernels for the fake device (tests/support/fake_device): each launch is a
// piece of work that happens late, in an order that the device's seed chooses, and is then run by
// the emulation (tests/support/cuda_on_cpu).
//
// The device knows what launches read and write, and so finds accesses that no wait orders, except
// for pages and prefixes: their places are in lists that are in the device's memory. A missing wait
// there shows in the numbers.

#include "cairn/kernels/batch/forward_kernels.h"
#include "tests/support/fake_device/control.h"

namespace cairn::kernels::testing {

// Makes the device find them under their name and version, until it is reset.
void AddForwardKernels(const device::fake::FakeControl& control);

}  // namespace cairn::kernels::testing
