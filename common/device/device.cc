#include "common/device/device.h"

#include "common/log/log.h"

namespace cairn::device {

template <typename Call>
Status Device::Run(const char* operation, Call&& call) {
  if (lost()) return LossStatus();
  Failure failure;
  const Code code = call(&failure);
  if (code == Code::kOk) return OkStatus();
  const Status status =
      ToStatus(code, failure, fmt::format("device {}: {}", info_.ordinal, operation));
  return code == Code::kLost ? Lose(status) : status;
}

Status Device::Lose(const Status& why) {
  {
    MutexLock lock(mu_);
    if (!loss_.ok()) return loss_;
    loss_ = why;
  }
  lost_.store(true, std::memory_order_release);
  log::Error("device_lost", {{"device", log::Num(info_.ordinal)},
                             {"name", info_.name},
                             {"uuid", info_.uuid},
                             {"reason", Message(why)}});
  return why;
}

Status Device::LossStatus() const {
  MutexLock lock(mu_);
  return loss_;
}

Result<Device::MemoryState> Device::GetMemoryState() {
  MemoryState state;
  CAIRN_RETURN_IF_ERROR(Run("asking for free memory", [&](Failure* failure) {
    return table().memory(info_.ordinal, &state.free_bytes, &state.total_bytes, failure);
  }));
  return state;
}

Result<DeviceMemory> Device::Allocate(uint64_t bytes, bool exportable) {
  if (bytes == 0) return InvalidArgument("field 'bytes': got 0, expected at least 1");
  if (exportable && !info_.exports) {
    return Errorf(StatusCode::kUnimplemented, "device {}: its memory cannot be exported",
                  info_.ordinal);
  }
  const uint64_t granularity = info_.granularity;
  if (bytes > UINT64_MAX - granularity) {
    return InvalidArgument("field 'bytes': got {}, expected less than 2^64", bytes);
  }
  bytes = (bytes + granularity - 1) / granularity * granularity;
  MemoryHandle* handle = nullptr;
  uint64_t address = 0;
  CAIRN_RETURN_IF_ERROR(Run("allocating memory", [&](Failure* failure) {
    return table().allocate(info_.ordinal, bytes, exportable ? kExportable : 0u, &handle, &address,
                            failure);
  }));
  return DeviceMemory(shared_from_this(), handle, address, bytes);
}

Result<DeviceMemory> Device::Import(int descriptor, uint64_t bytes) {
  MemoryHandle* handle = nullptr;
  uint64_t address = 0;
  CAIRN_RETURN_IF_ERROR(Run("importing memory", [&](Failure* failure) {
    return table().import_memory(info_.ordinal, descriptor, bytes, &handle, &address, failure);
  }));
  return DeviceMemory(shared_from_this(), handle, address, bytes);
}

Result<PinnedMemory> Device::AllocatePinned(uint64_t bytes) {
  if (bytes == 0) return InvalidArgument("field 'bytes': got 0, expected at least 1");
  void* address = nullptr;
  CAIRN_RETURN_IF_ERROR(Run("allocating pinned memory", [&](Failure* failure) {
    return table().allocate_host(bytes, &address, failure);
  }));
  return PinnedMemory(shared_from_this(), {static_cast<std::byte*>(address), bytes});
}

Result<HostRegistration> Device::Register(std::span<const std::byte> memory, bool read_only) {
  if (memory.empty()) return InvalidArgument("field 'memory': got 0 bytes, expected at least 1");
  if (!info_.registers || (read_only && !info_.registers_read_only)) {
    return Errorf(StatusCode::kUnimplemented, "device {}: it cannot register {}memory of the host",
                  info_.ordinal, read_only ? "read-only " : "");
  }
  void* const address = const_cast<std::byte*>(memory.data());
  CAIRN_RETURN_IF_ERROR(Run("registering memory of the host", [&](Failure* failure) {
    return table().register_host(address, memory.size(), read_only ? kReadOnly : 0u, failure);
  }));
  return HostRegistration(shared_from_this(), address);
}

Result<Stream> Device::NewStream() {
  StreamHandle* handle = nullptr;
  CAIRN_RETURN_IF_ERROR(Run("making a stream", [&](Failure* failure) {
    return table().create_stream(info_.ordinal, &handle, failure);
  }));
  return Stream(shared_from_this(), handle);
}

Result<Stream> Device::NewUrgentStream() {
  StreamHandle* handle = nullptr;
  CAIRN_RETURN_IF_ERROR(Run("making a stream", [&](Failure* failure) {
    return table().create_urgent_stream(info_.ordinal, &handle, failure);
  }));
  return Stream(shared_from_this(), handle);
}

Result<Stream> Device::BorrowStream(void* native) {
  StreamHandle* handle = nullptr;
  CAIRN_RETURN_IF_ERROR(Run("borrowing a stream", [&](Failure* failure) {
    return table().borrow_stream(info_.ordinal, native, &handle, failure);
  }));
  return Stream(shared_from_this(), handle);
}

Result<Event> Device::NewEvent() {
  EventHandle* handle = nullptr;
  CAIRN_RETURN_IF_ERROR(Run("making an event", [&](Failure* failure) {
    return table().create_event(info_.ordinal, &handle, failure);
  }));
  return Event(shared_from_this(), handle);
}

Result<const void*> Device::Kernels(const char* name, uint32_t version) {
  const void* kernels = nullptr;
  CAIRN_RETURN_IF_ERROR(Run("finding kernels", [&](Failure* failure) {
    return table().kernels(info_.ordinal, name, version, &kernels, failure);
  }));
  return kernels;
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this == &other) return *this;
  Release();
  device_ = std::move(other.device_);
  handle_ = std::exchange(other.handle_, nullptr);
  address_ = std::exchange(other.address_, 0);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

Result<int> DeviceMemory::Export() const {
  CAIRN_CHECK(handle_ != nullptr);
  int descriptor = -1;
  CAIRN_RETURN_IF_ERROR(device_->Run("exporting memory", [&](Failure* failure) {
    return device_->table().export_memory(handle_, &descriptor, failure);
  }));
  return descriptor;
}

void DeviceMemory::Release() {
  if (handle_ != nullptr) device_->table().release_memory(std::exchange(handle_, nullptr));
  address_ = bytes_ = 0;
  device_.reset();
}

PinnedMemory& PinnedMemory::operator=(PinnedMemory&& other) noexcept {
  if (this == &other) return *this;
  Release();
  device_ = std::move(other.device_);
  bytes_ = std::exchange(other.bytes_, {});
  return *this;
}

void PinnedMemory::Release() {
  if (!bytes_.empty()) device_->table().release_host(bytes_.data());
  bytes_ = {};
  device_.reset();
}

HostRegistration& HostRegistration::operator=(HostRegistration&& other) noexcept {
  if (this == &other) return *this;
  Release();
  device_ = std::move(other.device_);
  address_ = std::exchange(other.address_, nullptr);
  return *this;
}

void HostRegistration::Release() {
  if (device_ == nullptr) return;
  // Also of a lost device: the machine's pages stay pinned otherwise.
  Failure failure;
  const Code code = device_->table().unregister_host(address_, &failure);
  if (code != Code::kOk && code != Code::kLost) {
    log::Warn("device_unregister_failed", {{"device", log::Num(device_->info().ordinal)},
                                           {"reason", std::string(failure.text)}});
  }
  address_ = nullptr;
  device_.reset();
}

Event& Event::operator=(Event&& other) noexcept {
  if (this == &other) return *this;
  Release();
  device_ = std::move(other.device_);
  handle_ = std::exchange(other.handle_, nullptr);
  return *this;
}

Result<bool> Event::Query() const {
  CAIRN_CHECK(handle_ != nullptr);
  bool ready = true;
  CAIRN_RETURN_IF_ERROR(device_->Run("asking for an event", [&](Failure* failure) {
    const Code code = device_->table().query(handle_, failure);
    ready = code != Code::kNotReady;
    return ready ? code : Code::kOk;
  }));
  return ready;
}

Status Event::Synchronize() const {
  CAIRN_CHECK(handle_ != nullptr);
  return device_->Run("waiting for an event", [&](Failure* failure) {
    return device_->table().synchronize(handle_, failure);
  });
}

void Event::Release() {
  if (handle_ != nullptr) device_->table().destroy_event(std::exchange(handle_, nullptr));
  device_.reset();
}

Graph& Graph::operator=(Graph&& other) noexcept {
  if (this == &other) return *this;
  Release();
  device_ = std::move(other.device_);
  handle_ = std::exchange(other.handle_, nullptr);
  return *this;
}

void Graph::Release() {
  if (handle_ != nullptr) device_->table().destroy_graph(std::exchange(handle_, nullptr));
  device_.reset();
}

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this == &other) return *this;
  Release();
  device_ = std::move(other.device_);
  handle_ = std::exchange(other.handle_, nullptr);
  return *this;
}

Status Stream::Copy(const char* what, std::span<const CopyTask> tasks) {
  CAIRN_CHECK(handle_ != nullptr);
  if (tasks.empty()) return OkStatus();
  return device_->Run("copying", [&](Failure* failure) {
    return device_->table().copy(handle_, what, tasks.data(), tasks.size(), failure);
  });
}

Status Stream::Fill(const char* what, uint64_t address, uint8_t value, uint64_t bytes) {
  CAIRN_CHECK(handle_ != nullptr);
  return device_->Run("filling memory", [&](Failure* failure) {
    return device_->table().fill(handle_, what, address, value, bytes, failure);
  });
}

Status Stream::Record(const Event& event) {
  CAIRN_CHECK(handle_ != nullptr && event.handle_ != nullptr);
  return device_->Run("recording an event", [&](Failure* failure) {
    return device_->table().record(handle_, event.handle_, failure);
  });
}

Status Stream::Wait(const Event& event) {
  CAIRN_CHECK(handle_ != nullptr && event.handle_ != nullptr);
  return device_->Run("waiting on a stream", [&](Failure* failure) {
    return device_->table().wait(handle_, event.handle_, failure);
  });
}

Result<Graph> Stream::Capture(const std::function<Status()>& launch) {
  CAIRN_CHECK(handle_ != nullptr);
  CAIRN_RETURN_IF_ERROR(device_->Run("beginning a capture", [&](Failure* failure) {
    return device_->table().begin_capture(handle_, failure);
  }));
  const Status launched = launch();
  GraphHandle* handle = nullptr;
  const Status ended = device_->Run("ending a capture", [&](Failure* failure) {
    return device_->table().end_capture(handle_, &handle, failure);
  });
  Graph graph(device_, handle);
  CAIRN_RETURN_IF_ERROR(launched);
  CAIRN_RETURN_IF_ERROR(ended);
  return graph;
}

Status Stream::Launch(const Graph& graph) {
  CAIRN_CHECK(handle_ != nullptr && graph.handle_ != nullptr);
  return device_->Run("launching a graph", [&](Failure* failure) {
    return device_->table().launch_graph(handle_, graph.handle_, failure);
  });
}

void* Stream::native() const {
  CAIRN_CHECK(handle_ != nullptr);
  return device_->table().native_stream(handle_);
}

void Stream::Release() {
  if (handle_ != nullptr) device_->table().destroy_stream(std::exchange(handle_, nullptr));
  device_.reset();
}

}  // namespace cairn::device
