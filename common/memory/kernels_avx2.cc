#include "common/memory/kernels.h"

#if defined(__x86_64__)

#define XXH_INLINE_ALL
#include <immintrin.h>
#include <xxhash.h>

namespace cairn::memory {
namespace {

struct Line {
  __m256i low, high;
  static Line Load(const std::byte* p) {
    const auto* from = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(from), _mm256_loadu_si256(from + 1)};
  }
  void Save(std::byte* p) const {
    auto* to = reinterpret_cast<__m256i*>(p);
    _mm256_storeu_si256(to, low);
    _mm256_storeu_si256(to + 1, high);
  }
  void Stream(std::byte* p) const {
    auto* to = reinterpret_cast<__m256i*>(p);
    _mm256_stream_si256(to, low);
    _mm256_stream_si256(to + 1, high);
  }
};

// No instruction joins lines at a place that is not known beforehand.
struct Join {
  static constexpr bool kWorks = false;
  explicit Join(size_t) {}
  Line operator()(const Line&, const Line& next) const { return next; }
};

__m256i AddHalf(__m256i acc, __m256i data, __m256i secret) {
  const __m256i key = _mm256_xor_si256(data, secret);
  const __m256i product = _mm256_mul_epu32(key, _mm256_srli_epi64(key, 32));
  const __m256i swapped = _mm256_shuffle_epi32(data, _MM_SHUFFLE(1, 0, 3, 2));
  return _mm256_add_epi64(product, _mm256_add_epi64(acc, swapped));
}

__m256i ScrambleHalf(__m256i acc, __m256i secret) {
  const __m256i prime = _mm256_set1_epi32(static_cast<int>(0x9E3779B1u));
  const __m256i x = _mm256_xor_si256(_mm256_xor_si256(acc, _mm256_srli_epi64(acc, 47)), secret);
  const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), prime);
  return _mm256_add_epi64(_mm256_mul_epu32(x, prime), _mm256_slli_epi64(high, 32));
}

// Eight lanes of 64 bits. Start values as the specification gives them.
struct Accumulator {
  __m256i low = _mm256_set_epi64x(
      static_cast<long long>(0x165667B19E3779F9u), static_cast<long long>(0xC2B2AE3D27D4EB4Fu),
      static_cast<long long>(0x9E3779B185EBCA87u), static_cast<long long>(0xC2B2AE3Du));
  __m256i high = _mm256_set_epi64x(
      static_cast<long long>(0x9E3779B1u), static_cast<long long>(0x27D4EB2F165667C5u),
      static_cast<long long>(0x85EBCA77u), static_cast<long long>(0x85EBCA77C2B2AE63u));

  void Add(const Line& data, const Line& secret) {
    low = AddHalf(low, data.low, secret.low);
    high = AddHalf(high, data.high, secret.high);
  }
  void Scramble(const Line& secret) {
    low = ScrambleHalf(low, secret.low);
    high = ScrambleHalf(high, secret.high);
  }
  void Save(uint64_t* lanes) const {
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), low);
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes + 4), high);
  }
};

}  // namespace
}  // namespace cairn::memory

#include "common/memory/kernels_body.inc.h"

namespace cairn::memory {
const Kernels* Avx2Kernels() { return &kKernels; }
}  // namespace cairn::memory

#else

namespace cairn::memory {
const Kernels* Avx2Kernels() { return nullptr; }
}  // namespace cairn::memory

#endif
