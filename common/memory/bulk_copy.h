#pragma once
// Copies and hashes many bytes at the speed of memory. The instructions are chosen at run time:
// AVX-512, AVX2, or what the compiler makes of plain C++.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace cairn {

// memcpy for a large destination that the CPU does not read soon. From 64 KiB on it uses
// non-temporal stores (1.4 to 2 times the speed of memcpy from DRAM to DRAM). For fewer bytes, and
// without AVX2, it is memcpy. The stores are ordered before the function returns. Use memcpy for a
// destination that is read immediately. The ranges must not overlap.
void BulkCopy(void* destination, const void* source, size_t bytes);

// Copies the bytes and returns their Xxh3, in one pass over the source. `streaming`: uses
// non-temporal stores, which only StreamingFence() orders for other threads. `next`: the bytes that
// the caller will read after these, if it knows them, so that the memory can begin to fetch them.
// The ranges must not overlap.
uint64_t CopyXxh3(void* destination, const void* source, size_t bytes, bool streaming,
                  const void* next = nullptr);

struct CopyRun {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};
// Copies with non-temporal stores whatever the size is, pages of several runs at a time. As with
// CopyXxh3, call StreamingFence before another thread learns of the bytes.
void StreamingCopy(std::span<const CopyRun> runs);
void StreamingCopy(void* destination, const void* source, size_t bytes);
void StreamingFence();

// XXH3-64 of the bytes (default secret, seed 0). Prefetches two pages ahead, because the hardware
// prefetchers alone leave a third of the bandwidth unused. `next`: as above.
uint64_t BulkXxh3(std::span<const std::byte> bytes, const void* next = nullptr);

// The instructions in use on this machine: "avx512", "avx2" or "memcpy".
std::string_view BulkCopyKind();

}  // namespace cairn
