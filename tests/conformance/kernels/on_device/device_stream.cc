#include "tests/conformance/kernels/on_device/device_stream.h"

namespace cairn::kernels::testing {

DeviceStream::DeviceStream(const std::shared_ptr<device::Device>& device) {
  auto stream = device->NewStream();
  Keep(stream.status());
  auto end = device->NewEvent();
  Keep(end.status());
  if (!error_.empty()) return;
  stream_ = *std::move(stream);
  end_ = *std::move(end);
}

// A stream must not go before its work has ended.
DeviceStream::~DeviceStream() { (void)Synchronize(); }

void DeviceStream::CopyIn(void* backend, const void* host, size_t bytes) {
  Copy("copy in", backend, host, bytes);
}

void DeviceStream::CopyOut(void* host, const void* backend, size_t bytes) {
  Copy("copy out", host, backend, bytes);
}

void DeviceStream::Copy(const char* what, const void* to, const void* from, size_t bytes) {
  if (bytes == 0 || !error_.empty()) return;
  const device::CopyTask task{.to = reinterpret_cast<uint64_t>(to),
                              .from = reinterpret_cast<uint64_t>(from),
                              .bytes = bytes};
  Keep(stream_.Copy(what, {&task, 1}));
}

bool DeviceStream::Synchronize() {
  if (!stream_ || !end_) return false;
  // Also after an error: what was launched before may still use memory.
  const Status recorded = stream_.Record(end_);
  Keep(recorded);
  if (recorded.ok()) Keep(end_.Synchronize());
  return error_.empty();
}

void DeviceStream::Launched(const char* operation, int error) {
  if (error != 0 && error_.empty()) error_ = fmt::format("{}: launch error {}", operation, error);
}

void DeviceStream::Keep(const Status& status) {
  if (!status.ok() && error_.empty()) error_ = Message(status);
}

}  // namespace cairn::kernels::testing
