#pragma once
// One device: its memory, pinned memory of the host, streams and events.
//
//   Driver::Load ─► Device ─► DeviceMemory ─► descriptor ─► another process: Device::Import
//                     ├─► PinnedMemory, HostRegistration     (memory of the host that copies use)
//                     └─► Stream ── Copy, Fill, Record ─► Event ── Query ─► happened
//                           └─ Capture ─► Graph ─► Launch, again and again
//
// Device is thread-safe. Each object that it gives out keeps the device alive, is movable, and
// belongs to one thread at a time, as its class says. All work is asynchronous: memory that a copy
// names must stay as it is until an event after the copy has happened.
//
// Errors name the operation. RESOURCE_EXHAUSTED: no memory. UNIMPLEMENTED: the device cannot.
// PERMISSION_DENIED: the machine does not allow it. UNAVAILABLE: the device is lost. A lost device
// stays lost: later calls return the first loss and do not reach the driver, but for those that
// give something back.

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "common/device/driver.h"

namespace cairn::device {

// Memory of the device, mapped into this process. Thread-compatible.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  // Unmaps it. REQUIRES: no work on it is under way.
  ~DeviceMemory() { Release(); }

  explicit operator bool() const { return handle_ != nullptr; }
  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }
  // A descriptor that the caller owns. A process that imports it can read and write all of the
  // memory, and keeps the memory alive. UNIMPLEMENTED: it was not allocated for that.
  Result<int> Export() const;
  void Release();

 private:
  friend class Device;
  DeviceMemory(std::shared_ptr<Device> device, MemoryHandle* handle, uint64_t address,
               uint64_t bytes)
      : device_(std::move(device)), handle_(handle), address_(address), bytes_(bytes) {}

  std::shared_ptr<Device> device_;
  MemoryHandle* handle_ = nullptr;
  uint64_t address_ = 0;
  uint64_t bytes_ = 0;
};

// Pinned memory of the host. Thread-compatible.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept;
  ~PinnedMemory() { Release(); }  // REQUIRES: no work on it is under way.

  std::span<std::byte> bytes() const { return bytes_; }
  void Release();

 private:
  friend class Device;
  PinnedMemory(std::shared_ptr<Device> device, std::span<std::byte> bytes)
      : device_(std::move(device)), bytes_(bytes) {}

  std::shared_ptr<Device> device_;
  std::span<std::byte> bytes_;
};

// Memory of the caller that is pinned as long as this exists. Its mapping must not change before.
// Thread-compatible.
class HostRegistration {
 public:
  HostRegistration() = default;
  HostRegistration(HostRegistration&& other) noexcept { *this = std::move(other); }
  HostRegistration& operator=(HostRegistration&& other) noexcept;
  ~HostRegistration() { Release(); }  // REQUIRES: no work on it is under way.

  explicit operator bool() const { return device_ != nullptr; }
  void Release();

 private:
  friend class Device;
  HostRegistration(std::shared_ptr<Device> device, void* address)
      : device_(std::move(device)), address_(address) {}

  std::shared_ptr<Device> device_;
  void* address_ = nullptr;
};

// A point in the work of a stream. One thread at a time uses it.
class Event {
 public:
  Event() = default;
  Event(Event&& other) noexcept { *this = std::move(other); }
  Event& operator=(Event&& other) noexcept;
  ~Event() { Release(); }

  explicit operator bool() const { return handle_ != nullptr; }
  // Whether all work before its last record has ended; the host may then use what the work wrote.
  // Does not wait. True, too, for an event that was never recorded. An error: the work may not have
  // happened, or only in part.
  Result<bool> Query() const;
  // Waits for it. For start and end, tests and tools: whatever serves requests asks Query.
  Status Synchronize() const;
  void Release();

 private:
  friend class Device;
  friend class Stream;
  Event(std::shared_ptr<Device> device, EventHandle* handle)
      : device_(std::move(device)), handle_(handle) {}

  std::shared_ptr<Device> device_;
  EventHandle* handle_ = nullptr;
};

// Launches of kernels that were noted (Stream::Capture) and can be done again, with the arguments
// that they had. One thread at a time uses it.
class Graph {
 public:
  Graph() = default;
  Graph(Graph&& other) noexcept { *this = std::move(other); }
  Graph& operator=(Graph&& other) noexcept;
  ~Graph() { Release(); }  // REQUIRES: its launches have ended.

  explicit operator bool() const { return handle_ != nullptr; }
  void Release();

 private:
  friend class Stream;
  Graph(std::shared_ptr<Device> device, GraphHandle* handle)
      : device_(std::move(device)), handle_(handle) {}

  std::shared_ptr<Device> device_;
  GraphHandle* handle_ = nullptr;
};

// A queue of work. One thread at a time uses it. `what` names the work in the reports of a test's
// device; it is a literal.
class Stream {
 public:
  Stream() = default;
  Stream(Stream&& other) noexcept { *this = std::move(other); }
  Stream& operator=(Stream&& other) noexcept;
  // REQUIRES: its work has ended, or the device is lost, or it is borrowed.
  ~Stream() { Release(); }

  explicit operator bool() const { return handle_ != nullptr; }
  // Any addresses of this device's memory and of the host's; ranges of one call do not overlap.
  // Host memory that is not pinned is copied too, but slowly and while the caller waits.
  Status Copy(const char* what, std::span<const CopyTask> tasks);
  Status Fill(const char* what, uint64_t address, uint8_t value, uint64_t bytes);
  Status Record(const Event& event);
  // Work that is put on this stream from now on begins after the event's last record before this
  // call. An event that was never recorded holds nothing up.
  Status Wait(const Event& event);
  // Notes the kernels that `launch` launches on this stream, instead of doing them. `launch` does
  // nothing else with the device: no copy, event, memory nor question. Its error, or
  // INVALID_ARGUMENT: it did, or the driver cannot note these kernels.
  Result<Graph> Capture(const std::function<Status()>& launch);
  // Does what was noted. Its launches do not overlap. REQUIRES: the graph was made on this device.
  Status Launch(const Graph& graph);
  // The driver's own handle, for tables of kernels.
  void* native() const;
  const std::shared_ptr<Device>& device() const { return device_; }
  void Release();

 private:
  friend class Device;
  Stream(std::shared_ptr<Device> device, StreamHandle* handle)
      : device_(std::move(device)), handle_(handle) {}

  std::shared_ptr<Device> device_;
  StreamHandle* handle_ = nullptr;
};

class Device : public std::enable_shared_from_this<Device> {
 public:
  const DeviceInfo& info() const { return info_; }
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  // Why it is lost: the first operation that said so. OK: it is not.
  Status LossStatus() const;

  struct MemoryState {
    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
  };
  Result<MemoryState> GetMemoryState();

  // Rounded up to the device's granularity. The bytes are not zeroed.
  Result<DeviceMemory> Allocate(uint64_t bytes, bool exportable);
  // Memory that another process, or this one, exported. `bytes`: its whole size. The descriptor
  // stays the caller's and may be closed afterwards.
  Result<DeviceMemory> Import(int descriptor, uint64_t bytes);
  Result<PinnedMemory> AllocatePinned(uint64_t bytes);
  // `read_only`: the mapping cannot be written; UNIMPLEMENTED where the device needs that.
  Result<HostRegistration> Register(std::span<const std::byte> memory, bool read_only);
  Result<Stream> NewStream();
  // A stream whose kernels begin before those of others that could begin, too.
  Result<Stream> NewUrgentStream();
  // A stream of somebody else in this process, by the driver's own handle: for CUDA a cudaStream_t,
  // null for the default stream. Its owner may use it at the same time, and keeps it alive longer
  // than what is returned here.
  Result<Stream> BorrowStream(void* native);
  Result<Event> NewEvent();

  // Functions that launch kernels on this device's streams (Stream::native). The library that
  // provides the table documents it under that name and version. NOT_FOUND names those that there
  // are.
  Result<const void*> Kernels(const char* name, uint32_t version);

 private:
  friend class Driver;
  friend class DeviceMemory;
  friend class PinnedMemory;
  friend class HostRegistration;
  friend class Event;
  friend class Graph;
  friend class Stream;
  Device(std::shared_ptr<Driver> driver, DeviceInfo info)
      : driver_(std::move(driver)), info_(std::move(info)) {}

  const DriverTable& table() const { return driver_->table(); }
  // Runs call(failure) unless the device is lost, and learns from its answer that it is.
  template <typename Call>
  Status Run(const char* operation, Call&& call);
  Status Lose(const Status& why);

  const std::shared_ptr<Driver> driver_;
  const DeviceInfo info_;
  std::atomic<bool> lost_{false};
  mutable Mutex mu_;
  Status loss_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::device
