#pragma once
// CUDA's words for a compiler that does not know them, so that g++ compiles the kernels as plain
// C++. This header only declares what a kernel needs from whoever runs it; the tests define it
// (tests/support/cuda_on_cpu). The product never includes it.
//
// A thread of a kernel is whatever the definitions make of it. All functions below may be called
// from such a thread only.

#include <cstddef>
#include <cstdint>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

namespace cairn::kernels::cuda::on_cpu {

// Where the running thread stands.
struct Place {
  dim3 thread, block, block_size, grid_size;
};
const Place& Here();

// Returns when all threads of the block that have not ended are here.
void BlockBarrier();
// The same for the 32 threads of a warp.
void WarpBarrier();

// Each lane of a warp hands over up to 64 bytes, then takes what lane `from` handed over. It orders
// no other memory.
void HandOver(const void* give, size_t bytes);
void Take(unsigned from, void* take, size_t bytes);

// c += a b by a warp, as device.h draws it. Rounded towards zero once for 16 products, which is
// what tensor cores come close to.
float TowardsZero(double sum);
void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], bool bfloat16);

// Shared memory of the block. Threads that ask in the same order get the same memory. 16-byte
// aligned.
std::byte* TakeShared(size_t bytes);

// Asynchronous copies of the running thread. They land only when the thread waits: NextToLand gives
// one copy after another, until at most `groups` groups are left, the newest ones.
struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
  uint32_t bytes = 0;
};
void IssueCopy(const Copy& copy);
void CommitCopies();
// False: no copy is due.
bool NextToLand(unsigned groups, Copy* copy);

// IEEE binary16, round to nearest even.
float HalfToFloat(uint16_t half);
uint16_t FloatToHalf(float x);

}  // namespace cairn::kernels::cuda::on_cpu

#define threadIdx (::cairn::kernels::cuda::on_cpu::Here().thread)
#define blockIdx (::cairn::kernels::cuda::on_cpu::Here().block)
#define blockDim (::cairn::kernels::cuda::on_cpu::Here().block_size)
#define gridDim (::cairn::kernels::cuda::on_cpu::Here().grid_size)

inline void __syncthreads() { ::cairn::kernels::cuda::on_cpu::BlockBarrier(); }
inline void __syncwarp(unsigned = ~0u) { ::cairn::kernels::cuda::on_cpu::WarpBarrier(); }

// For a whole warp only: all lanes that have not ended take part.
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  ::cairn::kernels::cuda::on_cpu::HandOver(&value, sizeof(value));
  ::cairn::kernels::cuda::on_cpu::Take(static_cast<unsigned>(lane) % 32, &value, sizeof(value));
  return value;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int bits) {
  return __shfl_sync(mask, value, static_cast<int>(threadIdx.x % 32) ^ bits);
}

inline unsigned atomicOr(unsigned* p, unsigned bits) {
  return __atomic_fetch_or(p, bits, __ATOMIC_RELAXED);
}
inline unsigned atomicAdd(unsigned* p, unsigned n) {
  return __atomic_fetch_add(p, n, __ATOMIC_RELAXED);
}
inline unsigned long long atomicAdd(unsigned long long* p, unsigned long long n) {
  return __atomic_fetch_add(p, n, __ATOMIC_RELAXED);
}
