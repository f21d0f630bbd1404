#include "tools/cairn/bench/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace cairn::cli::bench {
namespace {
constexpr size_t kHugePage = size_t{2} << 20;
}

Result<Buffer> Buffer::Allocate(size_t bytes) {
  const size_t size = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* const at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) {
    return Errorf(StatusCode::kResourceExhausted, "no room for a buffer of {} bytes", bytes);
  }
  madvise(at, size, MADV_HUGEPAGE);
  std::memset(at, 1, size);
  Buffer buffer;
  buffer.data_ = {static_cast<std::byte*>(at), size};
  return buffer;
}

Buffer::~Buffer() {
  if (!data_.empty()) munmap(data_.data(), data_.size());
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(data_, other.data_);
  return *this;
}

void FillRandom(std::span<std::byte> bytes, uint64_t seed) {
  // xorshift64*; eight bytes a step.
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 0x1234567;
  size_t at = 0;
  while (at < bytes.size()) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    const uint64_t value = state * 0x2545F4914F6CDD1Du;
    const size_t n = std::min(sizeof(value), bytes.size() - at);
    std::memcpy(bytes.data() + at, &value, n);
    at += n;
  }
}

}  // namespace cairn::cli::bench
