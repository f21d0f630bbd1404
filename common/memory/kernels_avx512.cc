#include "common/memory/kernels.h"

#if defined(__x86_64__)

#define XXH_INLINE_ALL
#include <immintrin.h>
#include <xxhash.h>

namespace cairn::memory {
namespace {

struct Line {
  __m512i v;
  static Line Load(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
  void Save(std::byte* p) const { _mm512_storeu_si512(p, v); }
  void Stream(std::byte* p) const { _mm512_stream_si512(reinterpret_cast<__m512i*>(p), v); }
};

// The last `bytes` bytes of a line and what follows them in the next.
class Join {
 public:
  static constexpr bool kWorks = true;  // For multiples of 4 bytes.
  explicit Join(size_t bytes) {
    alignas(kLine) int32_t at[16];
    for (int i = 0; i < 16; ++i) at[i] = 16 - static_cast<int>(bytes / 4) + i;
    index_ = _mm512_load_si512(at);
  }
  Line operator()(const Line& line, const Line& next) const {
    return {_mm512_permutex2var_epi32(line.v, index_, next.v)};
  }

 private:
  __m512i index_;
};

// Eight lanes of 64 bits. Start values as the specification gives them.
struct Accumulator {
  __m512i v = _mm512_set_epi64(
      static_cast<long long>(0x9E3779B1u), static_cast<long long>(0x27D4EB2F165667C5u),
      static_cast<long long>(0x85EBCA77u), static_cast<long long>(0x85EBCA77C2B2AE63u),
      static_cast<long long>(0x165667B19E3779F9u), static_cast<long long>(0xC2B2AE3D27D4EB4Fu),
      static_cast<long long>(0x9E3779B185EBCA87u), static_cast<long long>(0xC2B2AE3Du));

  void Add(const Line& data, const Line& secret) {
    const __m512i key = _mm512_xor_si512(data.v, secret.v);
    const __m512i product = _mm512_mul_epu32(key, _mm512_srli_epi64(key, 32));
    const __m512i swapped = _mm512_shuffle_epi32(data.v, _MM_PERM_BADC);
    v = _mm512_add_epi64(product, _mm512_add_epi64(v, swapped));
  }
  void Scramble(const Line& secret) {
    const __m512i prime = _mm512_set1_epi32(static_cast<int>(0x9E3779B1u));
    const __m512i x = _mm512_xor_si512(_mm512_xor_si512(v, _mm512_srli_epi64(v, 47)), secret.v);
    const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), prime);
    v = _mm512_add_epi64(_mm512_mul_epu32(x, prime), _mm512_slli_epi64(high, 32));
  }
  void Save(uint64_t* lanes) const { _mm512_store_si512(lanes, v); }
};

}  // namespace
}  // namespace cairn::memory

#include "common/memory/kernels_body.inc.h"

namespace cairn::memory {
const Kernels* Avx512Kernels() { return &kKernels; }
}  // namespace cairn::memory

#else

namespace cairn::memory {
const Kernels* Avx512Kernels() { return nullptr; }
}  // namespace cairn::memory

#endif
