#include "common/memory/bulk_copy.h"

#include <xxhash.h>

#include <cstring>

#include "common/memory/kernels.h"

namespace cairn {
namespace {

using memory::kLine;
using memory::Store;

constexpr size_t kBulk = 64 << 10;

const memory::Kernels* Choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f")) return memory::Avx512Kernels();
  if (__builtin_cpu_supports("avx2")) return memory::Avx2Kernels();
#endif
  return nullptr;
}

// A function's own: a hash may be asked for before the constructors of this file have run.
const memory::Kernels* Chosen() {
  static const memory::Kernels* const kernels = Choose();
  return kernels;
}

}  // namespace

void StreamingCopy(std::span<const CopyRun> runs) {
  const memory::Kernels* const kernels = Chosen();
  memory::PageCopy pages[memory::kStreams];
  size_t count = 0;
  for (const CopyRun& run : runs) {
    std::byte* to = run.to;
    const std::byte* from = run.from;
    size_t bytes = run.bytes;
    if (kernels == nullptr || bytes < 2 * kLine) {
      if (bytes > 0) std::memcpy(to, from, bytes);
      continue;
    }
    // Streaming stores need aligned lines: the ends are ordinary copies.
    const size_t head = -reinterpret_cast<uintptr_t>(to) & (kLine - 1);
    std::memcpy(to, from, head);
    to += head;
    from += head;
    bytes -= head;
    for (; bytes >= memory::kPage; bytes -= memory::kPage) {
      pages[count++] = {to, from};
      to += memory::kPage;
      from += memory::kPage;
      if (count < memory::kStreams) continue;
      kernels->stream_pages(pages);
      count = 0;
    }
    const size_t lines = bytes / kLine * kLine;
    kernels->stream(to, from, lines);
    std::memcpy(to + lines, from + lines, bytes - lines);
  }
  for (size_t i = 0; i < count; ++i) kernels->stream(pages[i].to, pages[i].from, memory::kPage);
}

void StreamingCopy(void* destination, const void* source, size_t bytes) {
  const CopyRun run{static_cast<std::byte*>(destination), static_cast<const std::byte*>(source),
                    bytes};
  StreamingCopy({&run, 1});
}

void StreamingFence() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#endif
}

void BulkCopy(void* destination, const void* source, size_t bytes) {
  if (bytes < kBulk) {
    if (bytes > 0) std::memcpy(destination, source, bytes);  // Either may be null without bytes.
    return;
  }
  StreamingCopy(destination, source, bytes);
  StreamingFence();
}

uint64_t CopyXxh3(void* destination, const void* source, size_t bytes, bool streaming,
                  const void* next) {
  const memory::Kernels* const kernels = Chosen();
  auto* to = static_cast<std::byte*>(destination);
  const auto* from = static_cast<const std::byte*>(source);
  if (kernels == nullptr || bytes < memory::kMinHash) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return XXH3_64bits(to, bytes);
  }
  const bool aligned = reinterpret_cast<uintptr_t>(to) % kLine == 0;
  const Store store = !streaming ? Store::kCached
                      : aligned  ? Store::kStreaming
                                 : Store::kStreamingShifted;
  return kernels->hash(to, from, bytes, store,
                       next == nullptr ? from : static_cast<const std::byte*>(next));
}

uint64_t BulkXxh3(std::span<const std::byte> bytes, const void* next) {
  const memory::Kernels* const kernels = Chosen();
  if (kernels == nullptr || bytes.size() < memory::kMinHash) {
    return XXH3_64bits(bytes.data(), bytes.size());
  }
  return kernels->hash(nullptr, bytes.data(), bytes.size(), Store::kNone,
                       next == nullptr ? bytes.data() : static_cast<const std::byte*>(next));
}

std::string_view BulkCopyKind() {
  const memory::Kernels* const kernels = Chosen();
  if (kernels == nullptr) return "memcpy";
  return kernels == memory::Avx512Kernels() ? "avx512" : "avx2";
}

}  // namespace cairn
