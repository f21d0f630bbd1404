// libcairn_fake_kernels.so, for processes that a test starts: CAIRN_FAKE_DEVICE=kernels=PATH.

#include "tests/support/fake_kernels/forward_kernels.h"
#include "tests/support/fake_kernels/slice_kernels.h"
#include "tests/support/fake_kernels/table_kernels.h"

extern "C" __attribute__((visibility("default"))) void cairn_fake_device_kernels(
    const cairn::device::fake::FakeControl* control) {
  cairn::kernels::testing::AddForwardKernels(*control);
  cairn::kernels::testing::AddSliceKernels(*control);
  cairn::kernels::testing::AddTableKernels(*control);
}

// For tests in Python: the operations on slices alone, of which the device knows what they touch.
extern "C" __attribute__((visibility("default"))) void cairn_fake_device_slice_kernels(
    const cairn::device::fake::FakeControl* control) {
  cairn::kernels::testing::AddSliceKernels(*control);
}
