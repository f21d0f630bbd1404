#pragma once
// The driver's calls for memory that other processes can import. The runtime does not have them, so
// they are asked for by name and version: the library has no undefined symbol of the driver.

#include <cuda.h>
#include <cudaTypedefs.h>

#include "common/device/driver_table.h"

namespace cairn::device {

struct MemoryHandle {
  uint32_t device = 0;
  CUmemGenericAllocationHandle allocation = 0;
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  bool exportable = false;
};

}  // namespace cairn::device

namespace cairn::device::cuda {

struct DriverCalls {
  PFN_cuDeviceGet_v2000 device_get = nullptr;
  PFN_cuDeviceGetAttribute_v2000 device_attribute = nullptr;
  PFN_cuMemGetAllocationGranularity_v10020 granularity = nullptr;
  PFN_cuMemCreate_v10020 create = nullptr;
  PFN_cuMemRelease_v10020 release = nullptr;
  PFN_cuMemAddressReserve_v10020 reserve = nullptr;
  PFN_cuMemAddressFree_v10020 free_address = nullptr;
  PFN_cuMemMap_v10020 map = nullptr;
  PFN_cuMemUnmap_v10020 unmap = nullptr;
  PFN_cuMemSetAccess_v10020 set_access = nullptr;
  PFN_cuMemExportToShareableHandle_v10020 export_handle = nullptr;
  PFN_cuMemImportFromShareableHandle_v10020 import_handle = nullptr;
};

// Asks the driver once. kOldDriver names the call that is missing.
Code FindDriverCalls(const DriverCalls** calls, Failure* failure);

// Bytes of which allocations are multiples, and whether memory can be exported. 0: the device has
// no such memory.
Code FindGranularity(const DriverCalls& calls, uint32_t device, uint64_t* bytes, bool* exports,
                     Failure* failure);
Code CreateMemory(const DriverCalls& calls, uint32_t device, uint64_t bytes, bool exportable,
                  MemoryHandle** memory, Failure* failure);
Code ExportMemory(const DriverCalls& calls, const MemoryHandle& memory, int* descriptor,
                  Failure* failure);
Code ImportMemory(const DriverCalls& calls, uint32_t device, int descriptor, uint64_t bytes,
                  MemoryHandle** memory, Failure* failure);
void ReleaseMemory(const DriverCalls& calls, MemoryHandle* memory);

}  // namespace cairn::device::cuda
