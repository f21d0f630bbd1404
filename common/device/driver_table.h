#pragma once
// The interface of a library that drives devices: one exported function that returns a table of
// functions. `cuda/` is such a library for NVIDIA's GPUs, tests/support/fake_device/ one for tests.
// Products use the classes of device.h over it, never the table.
//
// Functions of the table are thread-safe, but for two calls at a time on the same stream or event.
// They keep no pointer that they are given, except where they say so. Every function that can fail
// returns a Code, and then describes the failure in `Failure`. After kLost the device stays lost
// for the process: its later calls fail with kLost too, and functions that give something back only
// forget it.
//
// Addresses are numbers: those of a device's memory belong to the address space of the process, as
// pointers do, so a copy can tell from them alone where memory lies.

#include <cstdint>

namespace cairn::device {

// Grows with every change of what stands below. A library of another version is refused.
inline constexpr uint32_t kTableVersion = 3;

enum class Code : int32_t {
  kOk = 0,
  kNotReady = 1,      // An event has not happened yet.
  kNoDriver = 2,      // This machine has no driver, or no device that it can use.
  kOldDriver = 3,     // The driver is too old for the library.
  kOutOfMemory = 4,   // The device, or the machine for pinned memory, has not that much left.
  kNotSupported = 5,  // The device or the machine cannot do this.
  kRefused = 6,       // The machine does not allow it: limits of pinned memory, permissions.
  kInvalid = 7,       // An argument is wrong: a mistake of the caller.
  kLost = 8,          // The device failed for good, as after an uncorrectable memory error.
  kNotFound = 9,      // No such device or table of kernels.
  kOther = 10,
};

// The driver's own words. Ends with a zero.
struct Failure {
  char text[256] = {};
};

enum DeviceFlag : uint32_t {
  kExports = 1,            // Memory can be exported and imported by descriptor.
  kRegisters = 2,          // Memory of the host can be registered.
  kRegistersReadOnly = 4,  // Also memory that this process can only read.
};

struct DeviceFacts {
  char name[128] = {};  // Ends with a zero.
  uint8_t uuid[16] = {};
  uint64_t memory_bytes = 0;  // The memory of the whole device.
  uint64_t granularity = 0;   // Memory is allocated in multiples of this number of bytes.
  uint32_t flags = 0;         // DeviceFlag.
  uint32_t family_major = 0;  // Compute capability.
  uint32_t family_minor = 0;
  uint32_t copy_engines = 0;
};

struct MemoryHandle;
struct StreamHandle;
struct EventHandle;
struct GraphHandle;

enum AllocateFlag : uint32_t {
  kExportable = 1,
};
enum RegisterFlag : uint32_t {
  kReadOnly = 1,  // The process has no right to write there, and copies only read.
};

// Bytes to copy between two addresses, of a device's memory or of the host's.
struct CopyTask {
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t bytes = 0;
};

struct DriverTable {
  uint32_t version = 0;        // kTableVersion.
  uint32_t bytes = 0;          // sizeof(DriverTable).
  const char* name = nullptr;  // "cuda".

  // Finds the driver. May be called again. kNoDriver, kOldDriver.
  Code (*initialize)(Failure*) = nullptr;
  Code (*count)(uint32_t* devices, Failure*) = nullptr;
  Code (*facts)(uint32_t device, DeviceFacts*, Failure*) = nullptr;
  // Makes what this process needs on the device, which takes memory there. Before all that follow.
  Code (*open)(uint32_t device, Failure*) = nullptr;
  Code (*memory)(uint32_t device, uint64_t* free_bytes, uint64_t* total_bytes, Failure*) = nullptr;

  // `bytes`: a multiple of the granularity. The bytes are not zeroed.
  Code (*allocate)(uint32_t device, uint64_t bytes, uint32_t flags, MemoryHandle** memory,
                   uint64_t* address, Failure*) = nullptr;
  // A descriptor that the caller owns. Whoever imports it can read and write the memory.
  Code (*export_memory)(MemoryHandle*, int* descriptor, Failure*) = nullptr;
  // Memory that this or another process exported, at an address of its own. The descriptor stays
  // the caller's.
  Code (*import_memory)(uint32_t device, int descriptor, uint64_t bytes, MemoryHandle** memory,
                        uint64_t* address, Failure*) = nullptr;
  // Unmaps it. The memory goes when nobody has it mapped any more. No work on it is under way.
  void (*release_memory)(MemoryHandle*) = nullptr;

  // Pinned memory of the host, which all devices can copy.
  Code (*allocate_host)(uint64_t bytes, void** address, Failure*) = nullptr;
  void (*release_host)(void* address) = nullptr;
  // Pins memory of the caller, whose mapping must not change until it is unregistered.
  Code (*register_host)(void* address, uint64_t bytes, uint32_t flags, Failure*) = nullptr;
  Code (*unregister_host)(void* address, Failure*) = nullptr;

  // Work of one stream happens in order, work of different streams at any time.
  Code (*create_stream)(uint32_t device, StreamHandle** stream, Failure*) = nullptr;
  // As create_stream, but where another one has a kernel that could begin, too, this one's begins
  // first.
  Code (*create_urgent_stream)(uint32_t device, StreamHandle** stream, Failure*) = nullptr;
  // A stream that somebody else in this process has made, by the driver's own handle (for CUDA a
  // cudaStream_t, null for the default stream). It must live as long as the StreamHandle.
  Code (*borrow_stream)(uint32_t device, void* native, StreamHandle** stream, Failure*) = nullptr;
  // A borrowed stream is only forgotten.
  void (*destroy_stream)(StreamHandle*) = nullptr;
  // The driver's own handle, for tables of kernels.
  void* (*native_stream)(StreamHandle*) = nullptr;
  // An event happens when all that stood on the stream before its last record has ended. One that
  // was never recorded has happened.
  Code (*create_event)(uint32_t device, EventHandle** event, Failure*) = nullptr;
  void (*destroy_event)(EventHandle*) = nullptr;
  Code (*record)(StreamHandle*, EventHandle*, Failure*) = nullptr;
  // Work that is put on the stream later waits for the event's last record before this call.
  Code (*wait)(StreamHandle*, EventHandle*, Failure*) = nullptr;
  // kOk, or kNotReady. Does not wait.
  Code (*query)(EventHandle*, Failure*) = nullptr;
  // Waits.
  Code (*synchronize)(EventHandle*, Failure*) = nullptr;

  // All tasks on the stream, in any order among themselves. `tasks` is read before it returns.
  // `what` names the work in reports.
  Code (*copy)(StreamHandle*, const char* what, const CopyTask* tasks, uint64_t count,
               Failure*) = nullptr;
  Code (*fill)(StreamHandle*, const char* what, uint64_t address, uint8_t value, uint64_t bytes,
               Failure*) = nullptr;

  // Launches of kernels on the stream are noted instead of done, until end_capture. Until then this
  // thread may do nothing else with the device, nor anybody with the stream: copies, fills, events,
  // memory and questions are refused, or spoil the capture.
  Code (*begin_capture)(StreamHandle*, Failure*) = nullptr;
  // Ends it, also after an error. The graph holds the work that was noted, with the arguments that
  // it had, and can be launched any number of times. kInvalid: the capture was spoilt, and there is
  // no graph.
  Code (*end_capture)(StreamHandle*, GraphHandle** graph, Failure*) = nullptr;
  // Does what was noted on the stream, in that order. Launches of one graph do not overlap.
  Code (*launch_graph)(StreamHandle*, GraphHandle*, Failure*) = nullptr;
  // Its launches have ended.
  void (*destroy_graph)(GraphHandle*) = nullptr;

  // A table of functions that launch kernels, which only its users and its maker know. kNotFound:
  // there is none of this name and version; the text names those that there are.
  Code (*kernels)(uint32_t device, const char* name, uint32_t version, const void** table,
                  Failure*) = nullptr;
};

// The library's one exported function. It returns nullptr when it does not have the version, and
// keeps the table for as long as the library is loaded.
using GetDriverTable = const DriverTable* (*)(uint32_t version);
inline constexpr char kGetDriverTable[] = "cairn_device_driver";

}  // namespace cairn::device
