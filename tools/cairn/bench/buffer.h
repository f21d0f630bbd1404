#pragma once
// Large memory as benchmarks need it: huge pages where the kernel gives them, every page touched.

#include <cstddef>
#include <cstdint>
#include <span>

#include "cairn/common/status.h"

namespace cairn::cli::bench {

// Owns an anonymous mapping. Move-only. Threads may use its bytes as those of any memory.
class Buffer {
 public:
  Buffer() = default;
  // RESOURCE_EXHAUSTED when there is not so much memory.
  static Result<Buffer> Allocate(size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept : data_(other.data_) { other.data_ = {}; }
  Buffer& operator=(Buffer&& other) noexcept;

  std::span<std::byte> bytes() const { return data_; }

 private:
  std::span<std::byte> data_;
};

// Reproducible bytes that neither compress nor repeat.
void FillRandom(std::span<std::byte> bytes, uint64_t seed);

}  // namespace cairn::cli::bench
