#pragma once
// Moving and hashing many bytes at the speed of memory. The instructions are chosen at run time:
// AVX-512, AVX2, or what the compiler makes of plain C++.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cairn {

// memcpy for a large destination that the CPU does not read soon: from 64 KiB on with non-temporal
// stores (1.4 to 2 x memcpy from DRAM to DRAM). Below, and without AVX2, memcpy. The stores are
// ordered before the return. A destination that is read at once is better off with memcpy. Ranges
// do not overlap.
void BulkCopy(void* destination, const void* source, size_t bytes);

// Copies and returns Xxh3 of the bytes, in one pass over the source. `streaming`: with non-temporal
// stores, which are ordered for other threads only by StreamingFence(). `next`: where the caller
// will read after this, if it knows: memory begins to fetch it. Ranges do not overlap.
uint64_t CopyXxh3(void* destination, const void* source, size_t bytes, bool streaming,
                  const void* next = nullptr);

struct CopyRun {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};
// Copies with non-temporal stores whatever the size, pages of several runs at a time. As CopyXxh3,
// needs a StreamingFence before another thread is told of the bytes.
void StreamingCopy(std::span<const CopyRun> runs);
void StreamingCopy(void* destination, const void* source, size_t bytes);
void StreamingFence();

// XXH3-64 of the bytes (default secret, seed 0). Asks for memory two pages ahead, since the
// hardware prefetchers alone leave a third of the bandwidth unused. `next` as above.
uint64_t BulkXxh3(std::span<const std::byte> bytes, const void* next = nullptr);

// What is used here: "avx512", "avx2", "memcpy".
std::string_view BulkCopyKind();

}  // namespace cairn
