#pragma once
// Buffers of the threads of a pool.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cairn::selections {

// Aligned bytes and numbers for each thread.
class Scratch {
 public:
  Scratch(int threads, size_t bytes, int64_t numbers = 0)
      : bytes_((bytes + kLine - 1) / kLine * kLine),
        numbers_((static_cast<size_t>(numbers) + 15) / 16 * 16),
        all_(static_cast<size_t>(threads) * (bytes_ + numbers_ * sizeof(float)) + kLine) {}

  std::byte* Bytes(int thread) {
    const auto at = reinterpret_cast<uintptr_t>(all_.data());
    return all_.data() + (kLine - at % kLine) % kLine +
           static_cast<size_t>(thread) * (bytes_ + numbers_ * sizeof(float));
  }
  float* Numbers(int thread) { return reinterpret_cast<float*>(Bytes(thread) + bytes_); }

 private:
  static constexpr size_t kLine = 64;
  size_t bytes_;
  size_t numbers_;
  std::vector<std::byte> all_;
};

}  // namespace cairn::selections
