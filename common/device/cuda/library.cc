// The table of common/device/driver_table.h over CUDA's runtime. Thread-safe as the table demands:
// each function chooses its device for its thread first, and CUDA does the rest.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "common/device/cuda/errors.h"
#include "common/device/cuda/kernel_tables.h"
#include "common/device/cuda/virtual_memory.h"

namespace cairn::device {

struct StreamHandle {
  uint32_t device = 0;
  cudaStream_t stream = nullptr;
  bool borrowed = false;
};
struct EventHandle {
  uint32_t device = 0;
  cudaEvent_t event = nullptr;
};
struct GraphHandle {
  uint32_t device = 0;
  cudaGraphExec_t executable = nullptr;
};

}  // namespace cairn::device

namespace cairn::device::cuda {
namespace {

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

cudaError_t Choose(uint32_t device) { return cudaSetDevice(static_cast<int>(device)); }

// ---- The machine and its devices ----

Code Initialize(Failure* failure) {
  int version = 0;
  cudaError_t error = cudaDriverGetVersion(&version);
  if (error == cudaSuccess && version == 0) {
    return Say(Code::kNoDriver, "this machine has no NVIDIA driver (libcuda.so.1)", failure);
  }
  if (error == cudaSuccess && version / 1000 < CUDART_VERSION / 1000) {
    std::snprintf(failure->text, sizeof(failure->text),
                  "the driver is for CUDA %d.%d, expected at least %d.0", version / 1000,
                  version % 1000 / 10, CUDART_VERSION / 1000);
    return Code::kOldDriver;
  }
  int devices = 0;
  if (error == cudaSuccess) error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) return Say(error, failure);
  const DriverCalls* calls = nullptr;
  return FindDriverCalls(&calls, failure);
}

Code Count(uint32_t* devices, Failure* failure) {
  int count = 0;
  const Code code = Say(cudaGetDeviceCount(&count), failure);
  *devices = static_cast<uint32_t>(count);
  return code;
}

Code Facts(uint32_t device, DeviceFacts* facts, Failure* failure) {
  cudaDeviceProp properties;
  Code code = Say(cudaGetDeviceProperties(&properties, static_cast<int>(device)), failure);
  if (code != Code::kOk) return code;
  static_assert(sizeof(facts->name) == 128);
  std::snprintf(facts->name, sizeof(facts->name), "%.127s", properties.name);
  std::memcpy(facts->uuid, properties.uuid.bytes, sizeof(facts->uuid));
  facts->memory_bytes = properties.totalGlobalMem;
  facts->family_major = static_cast<uint32_t>(properties.major);
  facts->family_minor = static_cast<uint32_t>(properties.minor);
  facts->copy_engines = static_cast<uint32_t>(properties.asyncEngineCount);
  const auto has = [&](cudaDeviceAttr attribute, uint32_t flag) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, attribute, static_cast<int>(device)) != cudaSuccess) {
      (void)cudaGetLastError();
    }
    if (value != 0) facts->flags |= flag;
  };
  has(cudaDevAttrHostRegisterSupported, kRegisters);
  has(cudaDevAttrHostRegisterReadOnlySupported, kRegistersReadOnly);
  const DriverCalls* calls = nullptr;
  code = FindDriverCalls(&calls, failure);
  if (code != Code::kOk) return code;
  bool exports = false;
  code = FindGranularity(*calls, device, &facts->granularity, &exports, failure);
  if (code != Code::kOk) return code;
  if (facts->granularity == 0) {
    return Say(Code::kNotSupported, "the device has no virtual memory management", failure);
  }
  if (exports) facts->flags |= kExports;
  return Code::kOk;
}

Code Open(uint32_t device, Failure* failure) {
  return Say(cudaInitDevice(static_cast<int>(device), 0, 0), failure);
}

// ---- Memory ----

Code Memory(uint32_t device, uint64_t* free_bytes, uint64_t* total_bytes, Failure* failure) {
  size_t free_now = 0, total = 0;
  cudaError_t error = Choose(device);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free_now, &total);
  *free_bytes = free_now;
  *total_bytes = total;
  return Say(error, failure);
}

Code Allocate(uint32_t device, uint64_t bytes, uint32_t flags, MemoryHandle** memory,
              uint64_t* address, Failure* failure) {
  Code code = Say(Choose(device), failure);
  const DriverCalls* calls = nullptr;
  if (code == Code::kOk) code = FindDriverCalls(&calls, failure);
  if (code == Code::kOk) {
    code = CreateMemory(*calls, device, bytes, (flags & kExportable) != 0, memory, failure);
  }
  if (code == Code::kOk) *address = (*memory)->address;
  return code;
}

Code Export(MemoryHandle* memory, int* descriptor, Failure* failure) {
  Code code = Say(Choose(memory->device), failure);
  const DriverCalls* calls = nullptr;
  if (code == Code::kOk) code = FindDriverCalls(&calls, failure);
  return code == Code::kOk ? ExportMemory(*calls, *memory, descriptor, failure) : code;
}

Code Import(uint32_t device, int descriptor, uint64_t bytes, MemoryHandle** memory,
            uint64_t* address, Failure* failure) {
  Code code = Say(Choose(device), failure);
  const DriverCalls* calls = nullptr;
  if (code == Code::kOk) code = FindDriverCalls(&calls, failure);
  if (code == Code::kOk) code = ImportMemory(*calls, device, descriptor, bytes, memory, failure);
  if (code == Code::kOk) *address = (*memory)->address;
  return code;
}

void Release(MemoryHandle* memory) {
  Failure failure;
  const DriverCalls* calls = nullptr;
  (void)Choose(memory->device);
  if (FindDriverCalls(&calls, &failure) == Code::kOk) ReleaseMemory(*calls, memory);
}

Code AllocateHost(uint64_t bytes, void** address, Failure* failure) {
  return Say(cudaHostAlloc(address, bytes, cudaHostAllocPortable), failure);
}

void ReleaseHost(void* address) { (void)cudaFreeHost(address); }

Code Register(void* address, uint64_t bytes, uint32_t flags, Failure* failure) {
  const unsigned read_only = (flags & kReadOnly) != 0 ? cudaHostRegisterReadOnly : 0u;
  return Say(cudaHostRegister(address, bytes, cudaHostRegisterPortable | read_only), failure);
}

Code Unregister(void* address, Failure* failure) {
  return Say(cudaHostUnregister(address), failure);
}

// ---- Streams and events ----

Code MakeStream(uint32_t device, bool urgent, StreamHandle** stream, Failure* failure) {
  StreamHandle made{.device = device};
  cudaError_t error = Choose(device);
  // A stream that is made without a priority has the lowest one.
  int lowest = 0, highest = 0;
  if (error == cudaSuccess) error = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
  // Its work does not wait for that of the default stream, which others may use.
  if (error == cudaSuccess) {
    error = cudaStreamCreateWithPriority(&made.stream, cudaStreamNonBlocking,
                                         urgent ? highest : lowest);
  }
  if (error == cudaSuccess) *stream = new StreamHandle(made);
  return Say(error, failure);
}

Code CreateStream(uint32_t device, StreamHandle** stream, Failure* failure) {
  return MakeStream(device, /*urgent=*/false, stream, failure);
}

Code CreateUrgentStream(uint32_t device, StreamHandle** stream, Failure* failure) {
  return MakeStream(device, /*urgent=*/true, stream, failure);
}

Code BorrowStream(uint32_t device, void* native, StreamHandle** stream, Failure* failure) {
  (void)failure;
  *stream = new StreamHandle{
      .device = device, .stream = static_cast<cudaStream_t>(native), .borrowed = true};
  return Code::kOk;
}

void DestroyStream(StreamHandle* stream) {
  if (!stream->borrowed) {
    (void)Choose(stream->device);
    (void)cudaStreamDestroy(stream->stream);
  }
  delete stream;
}

Code CreateEvent(uint32_t device, EventHandle** event, Failure* failure) {
  EventHandle made{.device = device};
  cudaError_t error = Choose(device);
  if (error == cudaSuccess) {
    error = cudaEventCreateWithFlags(&made.event, cudaEventDisableTiming);
  }
  if (error == cudaSuccess) *event = new EventHandle(made);
  return Say(error, failure);
}

void DestroyEvent(EventHandle* event) {
  (void)Choose(event->device);
  (void)cudaEventDestroy(event->event);
  delete event;
}

Code Record(StreamHandle* stream, EventHandle* event, Failure* failure) {
  cudaError_t error = Choose(stream->device);
  if (error == cudaSuccess) error = cudaEventRecord(event->event, stream->stream);
  return Say(error, failure);
}

Code Wait(StreamHandle* stream, EventHandle* event, Failure* failure) {
  cudaError_t error = Choose(stream->device);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(stream->stream, event->event, 0);
  return Say(error, failure);
}

Code Query(EventHandle* event, Failure* failure) {
  cudaError_t error = Choose(event->device);
  if (error == cudaSuccess) error = cudaEventQuery(event->event);
  return Say(error, failure);
}

Code Synchronize(EventHandle* event, Failure* failure) {
  cudaError_t error = Choose(event->device);
  if (error == cudaSuccess) error = cudaEventSynchronize(event->event);
  return Say(error, failure);
}

// ---- Work ----

// Each task by a call of its own: for few, and where the driver has no batches.
cudaError_t CopyEach(cudaStream_t stream, const CopyTask* tasks, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const cudaError_t error = cudaMemcpyAsync(Pointer(tasks[i].to), Pointer(tasks[i].from),
                                              tasks[i].bytes, cudaMemcpyDefault, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t CopyBatch(cudaStream_t stream, const CopyTask* tasks, uint64_t count) {
  std::vector<void*> to;
  std::vector<const void*> from;
  std::vector<size_t> bytes;
  for (uint64_t i = 0; i < count; ++i) {
    if (tasks[i].bytes == 0) continue;
    to.push_back(Pointer(tasks[i].to));
    from.push_back(Pointer(tasks[i].from));
    bytes.push_back(tasks[i].bytes);
  }
  if (to.empty()) return cudaSuccess;
  cudaMemcpyAttributes attributes = {};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  // Copy engines: the SMs are others'.
  attributes.flags = cudaMemcpyFlagPreferOverlapWithCompute;
  size_t first = 0;
  return cudaMemcpyBatchAsync(to.data(), from.data(), bytes.data(), to.size(), &attributes, &first,
                              1, stream);
}

Code Copy(StreamHandle* stream, const char*, const CopyTask* tasks, uint64_t count,
          Failure* failure) {
  constexpr uint64_t kFew = 2;
  cudaError_t error = Choose(stream->device);
  if (error != cudaSuccess) return Say(error, failure);
  if (count > kFew) {
    error = CopyBatch(stream->stream, tasks, count);
    if (error != cudaErrorNotSupported) return Say(error, failure);
    (void)cudaGetLastError();
  }
  return Say(CopyEach(stream->stream, tasks, count), failure);
}

Code Fill(StreamHandle* stream, const char*, uint64_t address, uint8_t value, uint64_t bytes,
          Failure* failure) {
  cudaError_t error = Choose(stream->device);
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(Pointer(address), value, bytes, stream->stream);
  }
  return Say(error, failure);
}

// ---- Graphs ----

Code BeginCapture(StreamHandle* stream, Failure* failure) {
  cudaError_t error = Choose(stream->device);
  // Other threads go on with their memory and events.
  if (error == cudaSuccess) {
    error = cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeThreadLocal);
  }
  return Say(error, failure);
}

Code EndCapture(StreamHandle* stream, GraphHandle** graph, Failure* failure) {
  cudaError_t error = Choose(stream->device);
  cudaGraph_t noted = nullptr;
  if (error == cudaSuccess) error = cudaStreamEndCapture(stream->stream, &noted);
  GraphHandle made{.device = stream->device};
  if (error == cudaSuccess) error = cudaGraphInstantiate(&made.executable, noted, 0);
  if (noted != nullptr) (void)cudaGraphDestroy(noted);
  if (error == cudaSuccess) *graph = new GraphHandle(made);
  return Say(error, failure);
}

Code LaunchGraph(StreamHandle* stream, GraphHandle* graph, Failure* failure) {
  cudaError_t error = Choose(stream->device);
  if (error == cudaSuccess) error = cudaGraphLaunch(graph->executable, stream->stream);
  return Say(error, failure);
}

void DestroyGraph(GraphHandle* graph) {
  (void)Choose(graph->device);
  (void)cudaGraphExecDestroy(graph->executable);
  delete graph;
}

Code Kernels(uint32_t device, const char* name, uint32_t version, const void** table,
             Failure* failure) {
  int family_major = 0;
  const Code code = Say(cudaDeviceGetAttribute(&family_major, cudaDevAttrComputeCapabilityMajor,
                                               static_cast<int>(device)),
                        failure);
  if (code != Code::kOk) return code;
  const auto all = KernelTables(family_major);
  for (const KernelTable& kernels : all) {
    if (std::strcmp(kernels.name, name) != 0 || kernels.version != version) continue;
    *table = kernels.table;
    return Code::kOk;
  }
  int at = std::snprintf(failure->text, sizeof(failure->text),
                         "no kernels '%s' of version %u; there are:", name, version);
  for (const KernelTable& kernels : all) {
    if (at < 0 || static_cast<size_t>(at) >= sizeof(failure->text)) break;
    at += std::snprintf(failure->text + at, sizeof(failure->text) - static_cast<size_t>(at),
                        " %s %u", kernels.name, kernels.version);
  }
  return Code::kNotFound;
}

constexpr DriverTable kTable = {
    .version = kTableVersion,
    .bytes = sizeof(DriverTable),
    .name = "cuda",
    .initialize = Initialize,
    .count = Count,
    .facts = Facts,
    .open = Open,
    .memory = Memory,
    .allocate = Allocate,
    .export_memory = Export,
    .import_memory = Import,
    .release_memory = Release,
    .allocate_host = AllocateHost,
    .release_host = ReleaseHost,
    .register_host = Register,
    .unregister_host = Unregister,
    .create_stream = CreateStream,
    .create_urgent_stream = CreateUrgentStream,
    .borrow_stream = BorrowStream,
    .destroy_stream = DestroyStream,
    .native_stream = [](StreamHandle* stream) -> void* { return stream->stream; },
    .create_event = CreateEvent,
    .destroy_event = DestroyEvent,
    .record = Record,
    .wait = Wait,
    .query = Query,
    .synchronize = Synchronize,
    .copy = Copy,
    .fill = Fill,
    .begin_capture = BeginCapture,
    .end_capture = EndCapture,
    .launch_graph = LaunchGraph,
    .destroy_graph = DestroyGraph,
    .kernels = Kernels};

}  // namespace
}  // namespace cairn::device::cuda

extern "C" __attribute__((visibility("default"))) const cairn::device::DriverTable*
cairn_device_driver(uint32_t version) {
  return version == cairn::device::kTableVersion ? &cairn::device::cuda::kTable : nullptr;
}
