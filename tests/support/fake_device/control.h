#pragma once
// How a test controls the fake device: a second table of the same library.
//
// Thread-safe.

#include <cstdint>

#include "common/device/driver_table.h"

namespace cairn::device::fake {

inline constexpr uint32_t kControlVersion = 3;

struct FakeOptions {
  uint64_t seed = 1;  // The seed of the order in which work of different streams happens.
  uint32_t devices = 1;
  uint64_t memory_bytes = 1ull << 30;  // The memory of each device.
  uint64_t granularity = 64 << 10;
  uint64_t pinned_bytes = UINT64_MAX;  // Over this, pinning is refused.
  // The rate of each device, all streams together. 0: no limit.
  uint64_t bytes_per_second = 0;
  // Work happens when somebody asks for an event, one piece at a time. False: when it is issued.
  bool late = true;
  bool exports = true;
  bool registers = true;
  bool registers_read_only = true;
  bool has_driver = true;
  bool old_driver = false;
  bool print_reports = true;  // To stderr, too.
};

// Bytes that a piece of work reads or writes.
struct Range {
  uint64_t address = 0;
  uint64_t bytes = 0;
};

struct FakeStats {
  uint64_t handles = 0;       // Memories, registrations, streams, events, graphs not given back.
  uint64_t exported = 0;      // Descriptors that were made.
  uint64_t device_bytes = 0;  // Allocated now, imported memory not counted.
  uint64_t pinned_bytes = 0;  // Pinned now.
  uint64_t copies = 0;        // Tasks.
  uint64_t copied_bytes = 0;
  uint64_t pageable_copies = 0;  // Tasks with memory of the host that is not pinned.
  uint64_t work_left = 0;        // Pieces that have not happened.
  uint64_t reports = 0;
  uint64_t graph_launches = 0;
};

struct FakeControl {
  uint32_t version = 0;  // kControlVersion.
  // Forgets everything, as if the library was loaded again. Handles from before must not be used.
  void (*reset)(const FakeOptions*) = nullptr;
  // Call number `after` from now of the table's function `operation` fails (0: the next one), and
  // `times` calls in all. "work" stands for a piece of work that happens: it fails with
  // `code`, at the event behind it. With kLost the device is lost from then on.
  void (*fail)(const char* operation, uint64_t after, uint64_t times, Code code) = nullptr;
  void (*lose)(uint32_t device) = nullptr;
  // Lets one piece of work happen. False: there is none that can.
  bool (*step)() = nullptr;
  // Accesses that no wait orders, and other mistakes, one in each line, as far as `buffer` reaches.
  // Ends with a zero. Forgets them.
  void (*take_reports)(char* buffer, uint64_t bytes) = nullptr;
  void (*stats)(FakeStats*) = nullptr;
  // An access of the host itself, which the library cannot see.
  void (*host_access)(const char* what, uint64_t address, uint64_t bytes, bool writes) = nullptr;

  // For fake kernels: a piece of work on a stream (a StreamHandle, or what native_stream gives).
  // `run(context)` is called when it happens, `drop(context)` when it is over or never happens.
  Code (*issue)(void* stream, const char* what, const Range* reads, uint64_t read_count,
                const Range* writes, uint64_t write_count, void (*run)(void*), void (*drop)(void*),
                void* context) = nullptr;
  // The table that DriverTable::kernels finds. Kept until a reset; the strings and the table stay
  // the caller's.
  void (*add_kernels)(const char* name, uint32_t version, const void* table) = nullptr;
  // As issue, for work that waits for something outside of the device, as a receive waits for its
  // peer. `ready(context)` is asked again and again, once all before it on the stream has ended; it
  // must not wait, nor use the device. The work happens when it says yes.
  Code (*issue_when)(void* stream, const char* what, const Range* reads, uint64_t read_count,
                     const Range* writes, uint64_t write_count, bool (*ready)(void*),
                     void (*run)(void*), void (*drop)(void*), void* context) = nullptr;
};

using GetFakeControl = const FakeControl* (*)(uint32_t version);
inline constexpr char kGetFakeControl[] = "cairn_fake_device_control";
// A library named in CAIRN_FAKE_DEVICE as kernels=PATH exports a function of this name and type,
// which adds its tables.
using AddFakeKernels = void (*)(const FakeControl*);
inline constexpr char kAddFakeKernels[] = "cairn_fake_device_kernels";

}  // namespace cairn::device::fake
