#pragma once
// The few things that kernels need beyond C++, each in two spellings: PTX or CUDA's intrinsics for
// nvcc, and C++ over on_cpu.h for every other compiler. Kernels use these names only. So one source
// is what ships and what the tests run on a CPU.
//
// Numbers are IEEE, rounded to nearest even, and nothing is fused: nvcc gets -fmad=false, g++
// -ffp-contract=off. Both divide and take roots exactly by default.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#define CAIRN_KERNEL extern "C" __global__
#define CAIRN_PARAMETER(type) const __grid_constant__ type
#define CAIRN_UNROLL _Pragma("unroll")
#else
#include "kernels/cuda/on_cpu.h"
#define CAIRN_KERNEL inline
// A thread is a call, which need not copy the launch's parameters.
#define CAIRN_PARAMETER(type) const type&
#define CAIRN_UNROLL
#endif

#define CAIRN_DEVICE __device__ __forceinline__

namespace cairn::kernels::cuda {

constexpr unsigned kWholeWarp = ~0u;
constexpr int kWarp = 32;

// ---- numbers ----

CAIRN_DEVICE float FromHalf(uint32_t bits) {
#if defined(__CUDACC__)
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
#else
  return on_cpu::HalfToFloat(static_cast<uint16_t>(bits));
#endif
}

CAIRN_DEVICE uint32_t ToHalf(float x) {
#if defined(__CUDACC__)
  return __half_as_ushort(__float2half_rn(x));
#else
  return on_cpu::FloatToHalf(x);
#endif
}

CAIRN_DEVICE uint32_t BitsOf(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return bits;
}
CAIRN_DEVICE float FloatOf(uint32_t bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}

// Two floats as halves, the first one in the lower bits.
CAIRN_DEVICE uint32_t HalfPair(float low, float high) {
#if defined(__CUDACC__)
  const __half2 pair = __floats2half2_rn(low, high);
  uint32_t bits;
  memcpy(&bits, &pair, 4);
  return bits;
#else
  return ToHalf(low) | ToHalf(high) << 16;
#endif
}

// 2^x. The device is off by up to 2 units in the last place, and takes subnormal numbers for zero.
CAIRN_DEVICE float Exp2(float x) {
#if defined(__CUDACC__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return std::exp2(x);
#endif
}

// The high 64 bits of a product.
CAIRN_DEVICE uint64_t MultiplyHigh(uint64_t a, uint64_t b) {
#if defined(__CUDACC__)
  return __umul64hi(a, b);
#else
  __extension__ typedef unsigned __int128 Wide;
  return static_cast<uint64_t>(static_cast<Wide>(a) * b >> 64);
#endif
}

// ---- memory ----

// A pointer that comes out of memory or out of parameters is generic to the compiler. This makes it
// one to global memory (LDG and STG instead of LD and ST).
template <typename T>
CAIRN_DEVICE T* Global(T* p) {
#if defined(__CUDACC__)
  __builtin_assume(__isGlobal(p));
#endif
  return p;
}

// A word that other threads may change by atomics meanwhile.
CAIRN_DEVICE uint32_t LoadAtomic(const uint32_t* p) {
#if defined(__CUDACC__)
  return *static_cast<const volatile uint32_t*>(p);
#else
  return __atomic_load_n(p, __ATOMIC_RELAXED);
#endif
}

// 16 bytes at any address. The device reads the one or two aligned pieces that hold them, and no
// others: so nothing outside of the 16-byte pieces that hold data is touched.
CAIRN_DEVICE uint4 Load16(const uint8_t* p) {
#if defined(__CUDACC__)
  const uint32_t skip = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(p)) & 15;
  const auto* piece = reinterpret_cast<const uint4*>(Global(p) - skip);
  const uint4 a = piece[0];
  if (skip == 0) return a;
  const uint4 b = piece[1];
  // First by whole words, with selects, then by bytes.
  const uint32_t w = skip / 4, bits = skip % 4 * 8;
  const uint32_t v0 = w == 0 ? a.x : w == 1 ? a.y : w == 2 ? a.z : a.w;
  const uint32_t v1 = w == 0 ? a.y : w == 1 ? a.z : w == 2 ? a.w : b.x;
  const uint32_t v2 = w == 0 ? a.z : w == 1 ? a.w : w == 2 ? b.x : b.y;
  const uint32_t v3 = w == 0 ? a.w : w == 1 ? b.x : w == 2 ? b.y : b.z;
  const uint32_t v4 = w == 0 ? b.x : w == 1 ? b.y : w == 2 ? b.z : b.w;
  return {__funnelshift_r(v0, v1, bits), __funnelshift_r(v1, v2, bits),
          __funnelshift_r(v2, v3, bits), __funnelshift_r(v3, v4, bits)};
#else
  uint4 v;
  std::memcpy(&v, p, 16);
  return v;
#endif
}

// 16 bytes to any address.
CAIRN_DEVICE void Store16(uint8_t* p, const uint4& v) {
#if defined(__CUDACC__)
  const auto address = reinterpret_cast<uintptr_t>(p);
  if ((address & 15) == 0) {
    *Global(reinterpret_cast<uint4*>(p)) = v;
  } else if ((address & 3) == 0) {
    auto* to = Global(reinterpret_cast<uint32_t*>(p));
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
  } else if ((address & 1) == 0) {
    auto* to = Global(reinterpret_cast<uint16_t*>(p));
    CAIRN_UNROLL
    for (int i = 0; i < 8; ++i) {
      const uint32_t word = i < 2 ? v.x : i < 4 ? v.y : i < 6 ? v.z : v.w;
      to[i] = static_cast<uint16_t>(word >> i % 2 * 16);
    }
  } else {
    uint8_t* to = Global(p);
    CAIRN_UNROLL
    for (int i = 0; i < 16; ++i) {
      const uint32_t word = i < 4 ? v.x : i < 8 ? v.y : i < 12 ? v.z : v.w;
      to[i] = static_cast<uint8_t>(word >> i % 4 * 8);
    }
  }
#else
  std::memcpy(p, &v, 16);
#endif
}

// 2 bytes at any address.
CAIRN_DEVICE uint32_t Load2(const uint8_t* p) {
  const uint8_t* from = Global(p);
  return static_cast<uint32_t>(from[0]) | static_cast<uint32_t>(from[1]) << 8;
}
CAIRN_DEVICE void Store2(uint8_t* p, uint32_t bits) {
  uint8_t* to = Global(p);
  to[0] = static_cast<uint8_t>(bits);
  to[1] = static_cast<uint8_t>(bits >> 8);
}

// Arrays in the block's shared memory. All threads take them in one order. The launch must ask for
// the sum of their sizes, each rounded up to 16 bytes.
class SharedArrays {
 public:
#if defined(__CUDACC__)
  CAIRN_DEVICE SharedArrays() {
    extern __shared__ uint4 cairn_shared[];
    next_ = reinterpret_cast<char*>(cairn_shared);
  }
#endif
  template <typename T>
  CAIRN_DEVICE T* Take(size_t n) {
#if defined(__CUDACC__)
    char* const array = next_;
    next_ += (n * sizeof(T) + 15) / 16 * 16;
    return reinterpret_cast<T*>(array);
#else
    return reinterpret_cast<T*>(on_cpu::TakeShared(n * sizeof(T)));
#endif
  }

#if defined(__CUDACC__)
 private:
  char* next_;
#endif
};

// 16 bytes of shared memory at any place of an array that begins at an aligned address. The device
// reads whole words, and so up to 4 bytes behind: the array must be that much longer.
CAIRN_DEVICE uint4 LoadShared16(const uint8_t* array, int at) {
#if defined(__CUDACC__)
  const auto* words = reinterpret_cast<const uint32_t*>(array) + at / 4;
  const uint32_t bits = at % 4 * 8;
  const uint32_t w[5] = {words[0], words[1], words[2], words[3], words[4]};
  return {__funnelshift_r(w[0], w[1], bits), __funnelshift_r(w[1], w[2], bits),
          __funnelshift_r(w[2], w[3], bits), __funnelshift_r(w[3], w[4], bits)};
#else
  uint4 v;
  std::memcpy(&v, array + at, 16);
  return v;
#endif
}

// ---- asynchronous copies, from global to shared memory ----

// 16 bytes; both addresses are aligned to 16. The copy lands at a wait for it: until then the
// target means nothing (the emulation fills it with NaN).
CAIRN_DEVICE void CopyAsync(void* to, const void* from) {
#if defined(__CUDACC__)
  const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(from) : "memory");
#else
  // Volatile: a sanitizer sees each of these stores.
  auto* words = static_cast<volatile uint64_t*>(to);
  words[0] = ~uint64_t{0};
  words[1] = ~uint64_t{0};
  on_cpu::IssueCopy({to, from, 16});
#endif
}

// The same, or 16 zeros if `valid` is false; then `from` is not read, but must be an address.
CAIRN_DEVICE void CopyAsyncOrZero(void* to, const void* from, bool valid) {
#if defined(__CUDACC__)
  const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(from), "r"(bytes)
               : "memory");
#else
  static const uint4 kZeros = {};
  CopyAsync(to, valid ? from : &kZeros);
#endif
}

// A run of bytes at any address is copied as the aligned pieces of 16 bytes that hold it. Bytes of
// a piece that are not of the run mean nothing in shared memory.
CAIRN_DEVICE int SkipOf(const uint8_t* run) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(run) & 15);
}
CAIRN_DEVICE int PiecesOf(const uint8_t* run, int bytes) { return (SkipOf(run) + bytes + 15) / 16; }
// Piece `piece` to its place in `to`, where the run's first byte so comes to SkipOf(run).
CAIRN_DEVICE void CopyPieceAsync(uint8_t* to, const uint8_t* run, [[maybe_unused]] int bytes,
                                 int piece) {
#if defined(__CUDACC__)
  CopyAsync(to + 16 * piece, run - SkipOf(run) + 16 * piece);
#else
  // Only the bytes of the run, so that ASan can tell what lies outside of it.
  const int skip = SkipOf(run);
  const int begin = piece == 0 ? skip : 16 * piece;
  const int end = 16 * (piece + 1) < skip + bytes ? 16 * (piece + 1) : skip + bytes;
  auto* words = reinterpret_cast<volatile uint64_t*>(to + 16 * piece);
  words[0] = ~uint64_t{0};
  words[1] = ~uint64_t{0};
  on_cpu::IssueCopy({to + begin, run + (begin - skip), static_cast<uint32_t>(end - begin)});
#endif
}

// The copies since the last commit are a group.
CAIRN_DEVICE void CommitCopies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  on_cpu::CommitCopies();
#endif
}

// All groups of this thread but the kLeft newest have landed. Other threads see them behind a
// barrier.
template <int kLeft>
CAIRN_DEVICE void WaitForCopies() {
#if defined(__CUDACC__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#else
  for (on_cpu::Copy copy; on_cpu::NextToLand(kLeft, &copy);) {
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
#endif
}

// ---- small matrices, by a warp ----
//
// Lane l, g = l / 4, t = l % 4; two numbers in a word, the first one in the lower bits.
//
//   a, 16 x 16   a[0] row g, columns 2t, 2t + 1    a[1] row g + 8    a[2], a[3] 8 columns further
//   b, 16 x 8    b[0] rows 2t, 2t + 1 of column g                    b[1] 8 rows further
//   c, 16 x 8    c[0], c[1] row g, columns 2t, 2t + 1                c[2], c[3] row g + 8

enum class Number16 { kHalf, kBfloat16 };

// c += a b. Products are exact; sums are float32, with whatever roundings tensor cores have.
template <Number16 kNumber>
CAIRN_DEVICE void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if defined(__CUDACC__)
  if constexpr (kNumber == Number16::kHalf) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#else
  on_cpu::MultiplyAdd(c, a, b, kNumber == Number16::kBfloat16);
#endif
}

// Four matrices of 8 x 8 numbers of 16 bits. `row`, of lane l: row l % 8 of matrix l / 8, 16
// aligned bytes of shared memory. Word m of a lane: row g of matrix m, columns 2t and 2t + 1;
// transposed: rows 2t and 2t + 1 of column g.
template <bool kTransposed>
CAIRN_DEVICE void LoadMatrices(uint32_t (&words)[4], const uint16_t* row) {
#if defined(__CUDACC__)
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(from)
                 : "memory");
  }
#else
  const unsigned g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
  on_cpu::HandOver(&row, sizeof(row));
  for (unsigned m = 0; m < 4; ++m) {
    uint32_t pair[2];
    for (unsigned i = 0; i < 2; ++i) {
      const uint16_t* line;
      on_cpu::Take(8 * m + (kTransposed ? 2 * t + i : g), &line, sizeof(line));
      pair[i] = line[kTransposed ? g : 2 * t + i];
    }
    words[m] = pair[0] | pair[1] << 16;
  }
#endif
}

}  // namespace cairn::kernels::cuda
