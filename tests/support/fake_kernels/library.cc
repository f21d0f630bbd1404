// libcairn_fake_kernels.so, for processes that a test starts: CAIRN_FAKE_DEVICE=kernels=PATH.

#include "tests/support/fake_kernels/forward_kernels.h"
#include "tests/support/fake_kernels/table_kernels.h"

extern "C" __attribute__((visibility("default"))) void cairn_fake_device_kernels(
    const cairn::device::fake::FakeControl* control) {
  cairn::kernels::testing::AddForwardKernels(*control);
  cairn::kernels::testing::AddTableKernels(*control);
}
