#pragma once
// A stream of a device as backends have it.

#include <memory>
#include <string>

#include "cairn/kernels/stream.h"
#include "common/device/device.h"

namespace cairn::kernels::testing {

// One thread at a time.
class DeviceStream final : public Stream {
 public:
  explicit DeviceStream(const std::shared_ptr<device::Device>& device);
  ~DeviceStream() override;

  void CopyIn(void* backend, const void* host, size_t bytes) override;
  void CopyOut(void* host, const void* backend, size_t bytes) override;
  [[nodiscard]] bool Synchronize() override;
  std::string_view error() const override { return error_; }
  void* native() override { return stream_.native(); }

  // The result of a table's entry: 0, or the error number of a launch.
  void Launched(const char* operation, int error);

 private:
  void Copy(const char* what, const void* to, const void* from, size_t bytes);
  void Keep(const Status& status);

  device::Stream stream_;
  device::Event end_;
  std::string error_;  // The first one.
};

}  // namespace cairn::kernels::testing
