#pragma once
// Memory of the late backend. Its addresses lie in a window that nobody may touch: the host that
// reads or writes through one of them dies at once. Operations reach the bytes elsewhere.

#include <cstdint>
#include <mutex>

#include "cairn/kernels/memory.h"

namespace cairn::kernels::testing {

// Any thread may use it at any time.
class LateMemory final : public Memory {
 public:
  LateMemory();
  ~LateMemory() override;
  LateMemory(const LateMemory&) = delete;
  LateMemory& operator=(const LateMemory&) = delete;

  std::byte* Allocate(size_t bytes) override;
  // The room is used again when everything is free.
  void Free(std::byte* memory) override;

  // Where the bytes of an address really are. Null: it is not an address of this memory.
  std::byte* Reach(const void* address);

 private:
  static constexpr size_t kBytes = size_t{1} << 30;

  // Constant after construction.
  std::byte* window_ = nullptr;
  std::byte* bytes_ = nullptr;

  std::mutex mutex_;
  size_t used_ = 0;
  int64_t live_ = 0;  // Allocations.
};

}  // namespace cairn::kernels::testing
