#include "common/device/cuda/virtual_memory.h"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <mutex>

#include "common/device/cuda/errors.h"

namespace cairn::device::cuda {
namespace {

// Where the calls came to be; the driver's newer forms of them do nothing for us.
constexpr unsigned kVirtualMemory = 10020;
constexpr unsigned kBasic = 2000;

template <typename Call>
Code FindCall(const char* name, unsigned version, Call* call, Failure* failure) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
  if (error != cudaSuccess) return Say(error, failure);
  if (found == nullptr || result != cudaDriverEntryPointSuccess) {
    std::snprintf(failure->text, sizeof(failure->text), "the driver has no call '%s'", name);
    return Code::kOldDriver;
  }
  *call = reinterpret_cast<Call>(found);
  return Code::kOk;
}

Code FindAll(DriverCalls* c, Failure* failure) {
  Code code = Code::kOk;
  const auto find = [&](const char* name, unsigned version, auto* call) {
    if (code == Code::kOk) code = FindCall(name, version, call, failure);
  };
  find("cuDeviceGet", kBasic, &c->device_get);
  find("cuDeviceGetAttribute", kBasic, &c->device_attribute);
  find("cuMemGetAllocationGranularity", kVirtualMemory, &c->granularity);
  find("cuMemCreate", kVirtualMemory, &c->create);
  find("cuMemRelease", kVirtualMemory, &c->release);
  find("cuMemAddressReserve", kVirtualMemory, &c->reserve);
  find("cuMemAddressFree", kVirtualMemory, &c->free_address);
  find("cuMemMap", kVirtualMemory, &c->map);
  find("cuMemUnmap", kVirtualMemory, &c->unmap);
  find("cuMemSetAccess", kVirtualMemory, &c->set_access);
  find("cuMemExportToShareableHandle", kVirtualMemory, &c->export_handle);
  find("cuMemImportFromShareableHandle", kVirtualMemory, &c->import_handle);
  return code;
}

CUmemAllocationProp Properties(uint32_t device, bool exportable) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(device)};
  properties.requestedHandleTypes =
      exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  return properties;
}

// Gives the allocation an address. On failure the allocation is released.
Code MapAllocation(const DriverCalls& calls, MemoryHandle memory, MemoryHandle** mapped,
                   Failure* failure) {
  CUresult error = calls.reserve(&memory.address, memory.bytes, 0, 0, 0);
  if (error == CUDA_SUCCESS) {
    error = calls.map(memory.address, memory.bytes, 0, memory.allocation, 0);
    if (error == CUDA_SUCCESS) {
      const CUmemAccessDesc access = {
          {CU_MEM_LOCATION_TYPE_DEVICE, static_cast<int>(memory.device)},
          CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
      error = calls.set_access(memory.address, memory.bytes, &access, 1);
      if (error == CUDA_SUCCESS) {
        *mapped = new MemoryHandle(memory);
        return Code::kOk;
      }
      (void)calls.unmap(memory.address, memory.bytes);
    }
    (void)calls.free_address(memory.address, memory.bytes);
  }
  (void)calls.release(memory.allocation);
  return Say(static_cast<int>(error), failure);
}

}  // namespace

Code FindDriverCalls(const DriverCalls** calls, Failure* failure) {
  static std::mutex mu;
  static DriverCalls found;
  static bool complete = false;
  const std::lock_guard<std::mutex> lock(mu);
  if (!complete) {
    const Code code = FindAll(&found, failure);
    if (code != Code::kOk) return code;
    complete = true;
  }
  *calls = &found;
  return Code::kOk;
}

Code FindGranularity(const DriverCalls& calls, uint32_t device, uint64_t* bytes, bool* exports,
                     Failure* failure) {
  *bytes = 0;
  *exports = false;
  CUdevice handle = 0;
  int has_memory = 0, has_export = 0;
  CUresult error = calls.device_get(&handle, static_cast<int>(device));
  if (error == CUDA_SUCCESS) {
    error = calls.device_attribute(&has_memory,
                                   CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, handle);
  }
  if (error == CUDA_SUCCESS) {
    error = calls.device_attribute(
        &has_export, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, handle);
  }
  if (error != CUDA_SUCCESS) return Say(static_cast<int>(error), failure);
  if (has_memory == 0) return Code::kOk;
  const CUmemAllocationProp properties = Properties(device, has_export != 0);
  size_t granularity = 0;
  error = calls.granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  if (error != CUDA_SUCCESS) return Say(static_cast<int>(error), failure);
  *bytes = granularity;
  *exports = has_export != 0;
  return Code::kOk;
}

Code CreateMemory(const DriverCalls& calls, uint32_t device, uint64_t bytes, bool exportable,
                  MemoryHandle** memory, Failure* failure) {
  const CUmemAllocationProp properties = Properties(device, exportable);
  MemoryHandle made{.device = device, .bytes = bytes, .exportable = exportable};
  const CUresult error = calls.create(&made.allocation, bytes, &properties, 0);
  if (error != CUDA_SUCCESS) return Say(static_cast<int>(error), failure);
  return MapAllocation(calls, made, memory, failure);
}

Code ExportMemory(const DriverCalls& calls, const MemoryHandle& memory, int* descriptor,
                  Failure* failure) {
  if (!memory.exportable) {
    return Say(Code::kNotSupported, "the memory was not allocated to be exported", failure);
  }
  return Say(static_cast<int>(calls.export_handle(descriptor, memory.allocation,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)),
             failure);
}

Code ImportMemory(const DriverCalls& calls, uint32_t device, int descriptor, uint64_t bytes,
                  MemoryHandle** memory, Failure* failure) {
  MemoryHandle made{.device = device, .bytes = bytes};
  // The call takes the number of the descriptor as a pointer.
  const CUresult error = calls.import_handle(
      &made.allocation, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  if (error != CUDA_SUCCESS) return Say(static_cast<int>(error), failure);
  return MapAllocation(calls, made, memory, failure);
}

void ReleaseMemory(const DriverCalls& calls, MemoryHandle* memory) {
  // A lost device refuses these; nothing can be done about it.
  (void)calls.unmap(memory->address, memory->bytes);
  (void)calls.release(memory->allocation);
  (void)calls.free_address(memory->address, memory->bytes);
  delete memory;
}

}  // namespace cairn::device::cuda
