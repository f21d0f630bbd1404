#pragma once
// Waits for a device without a call of the driver that blocks.

#include "cairn/common/status.h"
#include "common/device/device.h"

namespace cairn::worker {

// Until the event has happened. The first error of the device; DEADLINE_EXCEEDED after half a
// minute, because no piece of work here takes that long on a device that works.
Status Await(const device::Event& event, const char* what);

}  // namespace cairn::worker
