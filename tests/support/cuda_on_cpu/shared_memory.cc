#include "tests/support/cuda_on_cpu/shared_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>

#include "tests/support/cuda_on_cpu/sanitizers.h"

namespace cairn::kernels::testing {

SharedMemory::~SharedMemory() {
  if (memory_ == nullptr) return;
  sanitizers::Unpoison(memory_, mapped_);
  munmap(memory_, mapped_);
}

void SharedMemory::Renew(size_t bytes) {
  limit_ = bytes;
  const size_t needed = (bytes + (kMostArrays + 1) * (kRedZone + 16) + 4095) / 4096 * 4096;
  if (memory_ != nullptr) sanitizers::Unpoison(memory_, mapped_);
#if defined(CUDA_ON_CPU_TSAN)
  // Always other memory: unmapping is how TSan forgets the accesses of the block before.
  const bool keep = false;
#else
  const bool keep = needed <= mapped_;
#endif
  if (!keep) {
    if (memory_ != nullptr) munmap(memory_, mapped_);
    void* map = mmap(nullptr, needed, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) std::abort();
    memory_ = static_cast<std::byte*>(map);
    mapped_ = needed;
  }
  auto* words = reinterpret_cast<volatile uint64_t*>(memory_);
  for (size_t i = 0; i < needed / 8; ++i) words[i] = ~uint64_t{0};
  sanitizers::Poison(memory_, mapped_);
}

std::byte* SharedMemory::Take(size_t bytes, Cursor* cursor) {
  const size_t rounded = (bytes + 15) / 16 * 16;
  if (cursor->bytes + rounded > limit_ || cursor->arrays == kMostArrays) return nullptr;
  std::byte* const array = memory_ + cursor->bytes + (cursor->arrays + 1) * kRedZone;
  cursor->bytes += rounded;
  ++cursor->arrays;
  sanitizers::Unpoison(array, bytes);
  return array;
}

}  // namespace cairn::kernels::testing
