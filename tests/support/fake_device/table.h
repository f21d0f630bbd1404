#pragma once
// The control table inside of the library.

#include "tests/support/fake_device/control.h"

namespace cairn::device::fake {

const FakeControl* FakeControlTable();

}  // namespace cairn::device::fake
