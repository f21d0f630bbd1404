#include "services/cache/tier/bulk_copy.h"

#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cairn::cache {
namespace {

constexpr size_t kBulk = 64 << 10;

#if defined(__x86_64__)

constexpr size_t kLine = 64;

__attribute__((target("avx512f"))) void StreamAvx512(std::byte* to, const std::byte* from,
                                                     size_t bytes) {
  for (size_t i = 0; i < bytes; i += 4 * kLine) {
    const __m512i a = _mm512_loadu_si512(from + i);
    const __m512i b = _mm512_loadu_si512(from + i + kLine);
    const __m512i c = _mm512_loadu_si512(from + i + 2 * kLine);
    const __m512i d = _mm512_loadu_si512(from + i + 3 * kLine);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), a);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + kLine), b);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 2 * kLine), c);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i + 3 * kLine), d);
  }
  _mm_sfence();
}

__attribute__((target("avx2"))) void StreamAvx2(std::byte* to, const std::byte* from,
                                                size_t bytes) {
  for (size_t i = 0; i < bytes; i += 4 * kLine) {
    for (size_t j = 0; j < 4 * kLine; j += 2 * sizeof(__m256i)) {
      const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + j));
      const __m256i b =
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + j + sizeof(__m256i)));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + j), a);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + j + sizeof(__m256i)), b);
    }
  }
  _mm_sfence();
}

using Stream = void (*)(std::byte*, const std::byte*, size_t);

Stream Choose() {
  if (__builtin_cpu_supports("avx512f")) return StreamAvx512;
  if (__builtin_cpu_supports("avx2")) return StreamAvx2;
  return nullptr;
}

const Stream kStream = Choose();

#endif

}  // namespace

void BulkCopy(void* destination, const void* source, size_t bytes) {
#if defined(__x86_64__)
  if (bytes >= kBulk && kStream != nullptr) {
    auto* to = static_cast<std::byte*>(destination);
    const auto* from = static_cast<const std::byte*>(source);
    // Streaming stores need aligned lines: the ends are ordinary copies.
    const size_t head = -reinterpret_cast<uintptr_t>(to) & (kLine - 1);
    const size_t middle = (bytes - head) / (4 * kLine) * (4 * kLine);
    std::memcpy(to, from, head);
    kStream(to + head, from + head, middle);
    std::memcpy(to + head + middle, from + head + middle, bytes - head - middle);
    return;
  }
#endif
  std::memcpy(destination, source, bytes);
}

std::string_view BulkCopyKind() {
#if defined(__x86_64__)
  if (kStream == StreamAvx512) return "avx512";
  if (kStream == StreamAvx2) return "avx2";
#endif
  return "memcpy";
}

}  // namespace cairn::cache
