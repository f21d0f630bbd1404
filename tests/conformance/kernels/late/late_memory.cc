#include "tests/conformance/kernels/late/late_memory.h"

#include <sys/mman.h>

#include <cstdlib>

namespace cairn::kernels::testing {
namespace {

std::byte* Map(size_t bytes, int protection) {
  void* const at =
      mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) std::abort();
  return static_cast<std::byte*>(at);
}

}  // namespace

LateMemory::LateMemory()
    : window_(Map(kBytes, PROT_NONE)), bytes_(Map(kBytes, PROT_READ | PROT_WRITE)) {}

LateMemory::~LateMemory() {
  munmap(window_, kBytes);
  munmap(bytes_, kBytes);
}

std::byte* LateMemory::Allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  const size_t whole = (bytes + 64) / 64 * 64;  // Two allocations never have the same address.
  if (whole > kBytes - used_) return nullptr;
  std::byte* const at = window_ + used_;
  used_ += whole;
  ++live_;
  return at;
}

void LateMemory::Free(std::byte* memory) {
  if (memory == nullptr) return;
  const std::lock_guard lock(mutex_);
  if (--live_ == 0) used_ = 0;
}

std::byte* LateMemory::Reach(const void* address) {
  const std::lock_guard lock(mutex_);
  const auto at = reinterpret_cast<uintptr_t>(address),
             begin = reinterpret_cast<uintptr_t>(window_);
  return at >= begin && at - begin < used_ ? bytes_ + (at - begin) : nullptr;
}

}  // namespace cairn::kernels::testing
