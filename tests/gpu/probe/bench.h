#pragma once
// One device, a stream, memory that stays until the end, and how long work takes on it.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/device/device.h"

namespace cairn::gpu {

struct ProbeOptions {
  std::string library;  // As Driver::Load takes it.
  uint32_t ordinal = 0;
  // Sizes at which the emulation ends within seconds. Speeds then mean nothing.
  bool tiny = false;
};

// Thread-compatible.
class Bench {
 public:
  static Result<std::unique_ptr<Bench>> Open(const ProbeOptions& options);
  ~Bench();  // Waits for the stream.

  bool tiny() const { return tiny_; }
  const std::shared_ptr<device::Device>& device() const { return device_; }
  device::Stream& stream() { return stream_; }

  // Memory of the device, until the bench ends. Aligned to 256 bytes, not zeroed.
  Result<uint64_t> Allocate(uint64_t bytes);
  Result<std::span<std::byte>> AllocatePinned(uint64_t bytes);
  template <typename T>
  Result<T*> AllocateOf(int64_t n) {
    CAIRN_ASSIGN_OR_RETURN(const uint64_t at, Allocate(static_cast<uint64_t>(n) * sizeof(T)));
    return reinterpret_cast<T*>(at);
  }
  // A copy in the device's memory; has arrived when it returns.
  template <typename T>
  Result<T*> Upload(const std::vector<T>& host) {
    CAIRN_ASSIGN_OR_RETURN(T* const to, AllocateOf<T>(std::ssize(host)));
    CAIRN_RETURN_IF_ERROR(Move(reinterpret_cast<uint64_t>(to),
                               reinterpret_cast<uint64_t>(host.data()), host.size() * sizeof(T)));
    return to;
  }
  template <typename T>
  Result<std::vector<T>> Download(const T* from, int64_t n) {
    std::vector<T> host(static_cast<size_t>(n));
    CAIRN_RETURN_IF_ERROR(Move(reinterpret_cast<uint64_t>(host.data()),
                               reinterpret_cast<uint64_t>(from), host.size() * sizeof(T)));
    return host;
  }
  // Copies, and waits for it.
  Status Move(uint64_t to, uint64_t from, uint64_t bytes);
  // Fills `copies` places that follow each other with the bytes of the first one.
  Status Repeat(uint64_t first, uint64_t bytes, int64_t copies);
  // Waits for all that was launched.
  Status Synchronize();

  // Null: the library has no table of this name and version.
  template <typename Table>
  Result<const Table*> FindTable(const char* name, uint32_t version) {
    const auto found = device_->Kernels(name, version);
    if (!found.ok() && found.status().code() == StatusCode::kNotFound) return nullptr;
    CAIRN_RETURN_IF_ERROR(found.status());
    return static_cast<const Table*>(*found);
  }

  // Seconds that one call of `launch` keeps the device busy: the median of five rounds, each of as
  // many calls as last 50 ms. Tiny: one round of one call. The clock is the host's.
  Result<double> Time(const std::function<Status()>& launch);
  // The same for an entry of a table: launch() returns 0, or an error number.
  Result<double> TimeKernel(const char* what, const std::function<int()>& launch);

 private:
  Bench() = default;
  Result<double> Round(const std::function<Status()>& launch, int calls);

  bool tiny_ = false;
  std::shared_ptr<device::Device> device_;
  std::vector<device::DeviceMemory> memories_;
  std::vector<device::PinnedMemory> pinned_;
  device::Stream stream_;
  device::Event end_;
};

// Bytes in and out of a copy inside the device's memory, each second.
Result<double> CopyRate(Bench* bench);

}  // namespace cairn::gpu
