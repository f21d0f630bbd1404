#pragma once
// The loops behind bulk_copy.h, once per instruction set. Each lies in a file of its own, compiled
// for that set.

#include <cstddef>
#include <cstdint>

namespace cairn::memory {

inline constexpr size_t kLine = 64;
inline constexpr size_t kMinHash = 2048;  // Shorter inputs are the library's.

// kStreaming: to a multiple of kLine; kStreamingShifted: anywhere else; kStreamingJoined: the
// kernels' own choice where they can.
enum class Store : uint8_t { kNone, kCached, kStreaming, kStreamingShifted, kStreamingJoined };

inline constexpr size_t kPage = 4096;
inline constexpr size_t kStreams = 8;

struct PageCopy {
  std::byte* to;
  const std::byte* from;
};

struct Kernels {
  // Copies kStreams times kPage bytes; each `to` at a multiple of kLine. Non-temporal, not fenced.
  void (*stream_pages)(const PageCopy* pages);
  // `to` at a multiple of kLine, `bytes` a multiple of it. Non-temporal, not fenced.
  void (*stream)(std::byte* to, const std::byte* from, size_t bytes);
  // XXH3-64 of `bytes` >= kMinHash; on the way they are stored to `to` as `store` says. `next`:
  // what will be read after them; only asked for.
  uint64_t (*hash)(std::byte* to, const std::byte* from, size_t bytes, Store store,
                   const std::byte* next);
};

// nullptr on processors of another kind. Running them needs the instruction set: ask the CPU first.
const Kernels* Avx512Kernels();
const Kernels* Avx2Kernels();

}  // namespace cairn::memory
