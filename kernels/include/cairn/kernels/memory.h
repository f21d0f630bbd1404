#pragma once
// Memory that a backend's operations read and write.

#include <cstddef>

namespace cairn::kernels {

// Any thread may use it at any time.
class Memory {
 public:
  virtual ~Memory() = default;

  // Aligned to 64 bytes; the content is unspecified. Null: there is no room. `bytes` may be 0.
  virtual std::byte* Allocate(size_t bytes) = 0;
  // REQUIRES: no launched operation still uses it. Null is allowed.
  virtual void Free(std::byte* memory) = 0;
};

// The host's own memory, in which the backends of CPUs work. They take any other memory of the
// process as well.
class HostMemory final : public Memory {
 public:
  std::byte* Allocate(size_t bytes) override;
  void Free(std::byte* memory) override;
};

}  // namespace cairn::kernels
