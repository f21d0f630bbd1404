#pragma once
// A library of devices, loaded at run time. No program links one, so a machine without a driver
// runs every program; one that asks for a device is told once what is missing.
//
// Thread-safe.

#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "common/device/driver_table.h"

namespace cairn::device {

struct DeviceInfo {
  uint32_t ordinal = 0;
  std::string name;
  std::string uuid;  // "GPU-" and 32 digits with hyphens, as NVIDIA's tools write it.
  uint64_t memory_bytes = 0;
  uint64_t granularity = 0;
  bool exports = false;
  bool registers = false;
  bool registers_read_only = false;
  uint32_t family_major = 0, family_minor = 0;  // Compute capability.
  uint32_t copy_engines = 0;
};

class Device;

class Driver : public std::enable_shared_from_this<Driver> {
 public:
  // Loads the library at `path` ("" and a bare name: as kCudaLibrary, next to the shared object
  // that has this code, next to the program, or in the linker's path) and finds its driver.
  // NOT_FOUND: no such library. FAILED_PRECONDITION: it is of another version, or there is no
  // driver, or the driver is too old. The first failure of each path is logged too; later calls
  // return it without a log line. Probe logs nothing.
  //
  // A library stays loaded until the process ends: drivers do not survive being unloaded.
  static Result<std::shared_ptr<Driver>> Load(const std::string& path);
  static Result<std::shared_ptr<Driver>> Probe(const std::string& path);
  // For tests, and for a table that is linked in. `table` outlives the driver.
  static Result<std::shared_ptr<Driver>> Use(const DriverTable* table);

  std::string name() const { return table_.name; }
  // All devices that the driver lets this process see, by ordinal.
  const std::vector<DeviceInfo>& devices() const { return devices_; }
  // The device that `text` names: an ordinal, or the beginning of one uuid. NOT_FOUND names those
  // that there are.
  Result<DeviceInfo> Find(const std::string& text) const;
  // Takes some memory on the device. Every call makes a Device of its own; each learns by itself
  // that the device is lost.
  Result<std::shared_ptr<Device>> Open(uint32_t ordinal);

  const DriverTable& table() const { return table_; }

 private:
  explicit Driver(const DriverTable& table) : table_(table) {}
  Status Initialize();

  const DriverTable& table_;
  std::vector<DeviceInfo> devices_;  // Constant after Initialize.
};

// The name that Load looks for when it is given no path.
inline constexpr char kCudaLibrary[] = "libcairn_cuda.so";

// The Status of a code: `operation` and what the driver said.
Status ToStatus(Code code, const Failure& failure, const std::string& operation);

}  // namespace cairn::device
