#pragma once
// The loops behind bulk_copy.h, once per instruction set. Each set has a file of its own, which is
// compiled for that set.

#include <cstddef>
#include <cstdint>

namespace cairn::memory {

inline constexpr size_t kLine = 64;
inline constexpr size_t kMinHash = 2048;  // The library hashes shorter inputs.

// kStreaming: to a multiple of kLine. kStreamingShifted: to any other address. kStreamingJoined:
// the kernels choose it themselves when they can.
enum class Store : uint8_t { kNone, kCached, kStreaming, kStreamingShifted, kStreamingJoined };

inline constexpr size_t kPage = 4096;
inline constexpr size_t kStreams = 8;

struct PageCopy {
  std::byte* to;
  const std::byte* from;
};

struct Kernels {
  // Copies kStreams times kPage bytes. Each `to` must be a multiple of kLine. Non-temporal, not
  // fenced.
  void (*stream_pages)(const PageCopy* pages);
  // `to` and `bytes` must be multiples of kLine. Non-temporal, not fenced.
  void (*stream)(std::byte* to, const std::byte* from, size_t bytes);
  // XXH3-64 of `bytes` >= kMinHash. In the same pass it stores them to `to`, as `store` says.
  // `next`: the bytes that will be read after these, which are only prefetched.
  uint64_t (*hash)(std::byte* to, const std::byte* from, size_t bytes, Store store,
                   const std::byte* next);
};

// nullptr on other processor architectures. The loops need the instruction set: ask the CPU before
// running them.
const Kernels* Avx512Kernels();
const Kernels* Avx2Kernels();

}  // namespace cairn::memory
