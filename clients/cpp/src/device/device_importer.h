#pragma once
// Imports chunks with a device of common/device.

#include <memory>

#include "cairn/client/device_importer.h"
#include "common/device/device.h"

namespace cairn::client {

// The importer for this device alone. Memory that it imports keeps the device open. UNIMPLEMENTED:
// its memory cannot be shared between processes. Other errors are those of the device.
Result<std::shared_ptr<DeviceImporter>> NewDeviceImporter(std::shared_ptr<device::Device> device);

}  // namespace cairn::client
