#pragma once
// The device that a worker computes on, by its name in the settings.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "cairn/client/device_importer.h"
#include "cairn/common/status.h"
#include "common/device/device.h"

namespace cairn::worker {

// The number of the GPU that the name means; nullopt: "cpu". INVALID_ARGUMENT: another name.
Result<std::optional<uint32_t>> ParseWorkerDevice(std::string_view name);

// "cpu": null. "cuda:N": device N of the driver that the library at `library` loads (empty:
// libcairn_cuda.so where programs find it). Errors: those of ParseWorkerDevice and
// device::Driver.
Result<std::shared_ptr<device::Device>> OpenWorkerDevice(const std::string& name,
                                                         const std::string& library);
// The importer that a client needs to read blocks in the memory of that device. Null: the name is
// "cpu", or the device cannot share memory, which is logged. Errors as above.
Result<std::shared_ptr<client::DeviceImporter>> OpenWorkerImporter(const std::string& name,
                                                                   const std::string& library);

}  // namespace cairn::worker
