#pragma once
// XXH3-64 with seed 0 and the default secret (github.com/Cyan4973/xxHash, doc/xxhash_spec.md): the
// hash that parts carry. A warp hashes a run of bytes at any address. Runs of at most 240 bytes are
// one lane's.

#include "cairn/kernels/codec/slice_kernels.h"
#include "kernels/cuda/device.h"

namespace cairn::kernels::cuda {

constexpr int kHashThreads = 256;
constexpr int kHashRunsOfBlock = kHashThreads / kWarp;
constexpr int kMostRuns = 800;

struct HashBatch {
  int32_t count = 0;
  HashRun runs[kMostRuns];
};
static_assert(sizeof(HashBatch) <= 32764);

namespace xxh3 {

constexpr uint64_t kPrime32_1 = 0x9E3779B1u, kPrime32_2 = 0x85EBCA77u, kPrime32_3 = 0xC2B2AE3Du;
constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87u, kPrime2 = 0xC2B2AE3D27D4EB4Fu,
                   kPrime3 = 0x165667B19E3779F9u, kPrime4 = 0x85EBCA77C2B2AE63u,
                   kPrime5 = 0x27D4EB2F165667C5u;
constexpr uint64_t kMix1 = 0x165667919E3779F9u, kMix2 = 0x9FB21C651E98DF25u;

// The secret's 192 bytes as little-endian words.
__device__ constexpr uint64_t kSecret[24] = {
    0xbe4ba423396cfeb8u, 0x1cad21f72c81017cu, 0xdb979083e96dd4deu, 0x1f67b3b7a4a44072u,
    0x78e5c0cc4ee679cbu, 0x2172ffcc7dd05a82u, 0x8e2443f7744608b8u, 0x4c263a81e69035e0u,
    0xcb00c391bb52283cu, 0xa32e531b8b65d088u, 0x4ef90da297486471u, 0xd8acdea946ef1938u,
    0x3f349ce33f76faa8u, 0x1d4f0bc7c7bbdcf9u, 0x3159b4cd4be0518au, 0x647378d9c97e9fc8u,
    0xc3ebd33483acc5eau, 0xeb6313faffa081c5u, 0x49daf0b751dd0d17u, 0x9e68d429265516d3u,
    0xfca1477d58be162bu, 0xce31d07ad1b8f88fu, 0x280416958f3acb45u, 0x7e404bbbcafbd7afu};

// The eight bytes of the secret from `byte` on.
CAIRN_DEVICE uint64_t Secret(int byte) {
  const int word = byte / 8, shift = byte % 8 * 8;
  return shift == 0 ? kSecret[word] : kSecret[word] >> shift | kSecret[word + 1] << (64 - shift);
}

CAIRN_DEVICE uint64_t Load(const uint8_t* p, int bytes) {
  uint64_t v = 0;
  for (int i = 0; i < bytes; ++i) v |= static_cast<uint64_t>(Global(p)[i]) << (8 * i);
  return v;
}
CAIRN_DEVICE uint64_t Load64(const uint8_t* p) { return Load(p, 8); }

CAIRN_DEVICE uint64_t RotateLeft(uint64_t x, int n) { return x << n | x >> (64 - n); }
CAIRN_DEVICE uint64_t SwapBytes(uint64_t x) {
  uint64_t y = 0;
  for (int i = 0; i < 8; ++i) y = y << 8 | (x >> (8 * i) & 0xff);
  return y;
}
CAIRN_DEVICE uint64_t FoldedProduct(uint64_t a, uint64_t b) { return (a * b) ^ MultiplyHigh(a, b); }
CAIRN_DEVICE uint64_t Avalanche(uint64_t h) {
  h = (h ^ h >> 37) * kMix1;
  return h ^ h >> 32;
}
CAIRN_DEVICE uint64_t AvalancheOfXxh64(uint64_t h) {
  h = (h ^ h >> 33) * kPrime2;
  h = (h ^ h >> 29) * kPrime3;
  return h ^ h >> 32;
}

// ---- at most 240 bytes ----

CAIRN_DEVICE uint64_t Mix16(const uint8_t* p, int secret) {
  return FoldedProduct(Load64(p) ^ Secret(secret), Load64(p + 8) ^ Secret(secret + 8));
}

CAIRN_DEVICE uint64_t HashUpTo16(const uint8_t* in, int n) {
  if (n > 8) {
    const uint64_t low = Load64(in) ^ Secret(24) ^ Secret(32);
    const uint64_t high = Load64(in + n - 8) ^ Secret(40) ^ Secret(48);
    return Avalanche(static_cast<uint64_t>(n) + SwapBytes(low) + high + FoldedProduct(low, high));
  }
  if (n >= 4) {
    uint64_t h = (Load(in + n - 4, 4) + (Load(in, 4) << 32)) ^ Secret(8) ^ Secret(16);
    h = (h ^ RotateLeft(h, 49) ^ RotateLeft(h, 24)) * kMix2;
    h = (h ^ ((h >> 35) + static_cast<uint64_t>(n))) * kMix2;
    return h ^ h >> 28;
  }
  if (n == 0) return AvalancheOfXxh64(Secret(56) ^ Secret(64));
  const uint64_t word = Load(in, 1) << 16 | Load(in + n / 2, 1) << 24 | Load(in + n - 1, 1) |
                        static_cast<uint64_t>(n) << 8;
  return AvalancheOfXxh64(word ^ ((Secret(0) ^ Secret(0) >> 32) & 0xffffffffu));
}

CAIRN_DEVICE uint64_t HashUpTo240(const uint8_t* in, int n) {
  if (n <= 16) return HashUpTo16(in, n);
  uint64_t sum = static_cast<uint64_t>(n) * kPrime1;
  if (n <= 128) {
    // Pairs of 16 bytes from both ends.
    for (int pair = (n - 1) / 32; pair >= 0; --pair) {
      sum += Mix16(in + 16 * pair, 32 * pair);
      sum += Mix16(in + n - 16 * (pair + 1), 32 * pair + 16);
    }
    return Avalanche(sum);
  }
  for (int i = 0; i < 8; ++i) sum += Mix16(in + 16 * i, 16 * i);
  sum = Avalanche(sum);
  for (int i = 8; i < n / 16; ++i) sum += Mix16(in + 16 * i, 16 * (i - 8) + 3);
  return Avalanche(sum + Mix16(in + n - 16, 136 - 17));
}

// ---- more ----
// Stripes of 64 bytes, 16 of them a block. A lane has accumulators 2 j and 2 j + 1 (j = lane % 4)
// of stripe lane / 4 of eight: so it loads 16 bytes, and the two words that change places are its
// own.

CAIRN_DEVICE void Accumulate(uint64_t (&sum)[2], const uint4& v, uint64_t secret0,
                             uint64_t secret1) {
  const uint64_t d0 = v.x | static_cast<uint64_t>(v.y) << 32;
  const uint64_t d1 = v.z | static_cast<uint64_t>(v.w) << 32;
  const uint64_t k0 = d0 ^ secret0, k1 = d1 ^ secret1;
  sum[0] += d1 + (k0 & 0xffffffffu) * (k0 >> 32);
  sum[1] += d0 + (k1 & 0xffffffffu) * (k1 >> 32);
}

// Adds up the eight stripes. Sums of whole numbers have no order.
CAIRN_DEVICE void AddStripes(const uint64_t (&sum)[2], uint64_t (&accumulators)[2]) {
  CAIRN_UNROLL
  for (int i = 0; i < 2; ++i) {
    uint64_t s = sum[i];
    CAIRN_UNROLL
    for (int d = 4; d < kWarp; d *= 2) s += __shfl_xor_sync(kWholeWarp, s, d);
    accumulators[i] += s;
  }
}

// All lanes of a warp call it, with the same run. All get the hash.
CAIRN_DEVICE uint64_t HashLong(const uint8_t* in, uint64_t n, int lane) {
  const int j = lane % 4, stripe = lane / 4;
  uint64_t acc[2];  // By selects: an array that a lane indexes would lie in local memory.
  acc[0] = j == 0 ? kPrime32_3 : j == 1 ? kPrime2 : j == 2 ? kPrime4 : kPrime5;
  acc[1] = j == 0 ? kPrime1 : j == 1 ? kPrime3 : j == 2 ? kPrime32_2 : kPrime32_1;
  uint64_t secret[2][2];  // The secret for stripes `stripe` and `stripe` + 8 of a block.
  CAIRN_UNROLL
  for (int half = 0; half < 2; ++half) {
    CAIRN_UNROLL
    for (int i = 0; i < 2; ++i) secret[half][i] = kSecret[stripe + 8 * half + 2 * j + i];
  }
  const uint64_t scramble[2] = {kSecret[16 + 2 * j], kSecret[17 + 2 * j]};
  const uint64_t mine = static_cast<uint64_t>(stripe) * 64 + static_cast<uint64_t>(j) * 16;
  const uint64_t blocks = (n - 1) / 1024;
  uint4 next[2] = {};  // One block ahead.
  if (blocks > 0) {
    next[0] = Load16(in + mine);
    next[1] = Load16(in + mine + 512);
  }
  for (uint64_t b = 0; b < blocks; ++b) {
    const uint4 now[2] = {next[0], next[1]};
    if (b + 1 < blocks) {
      next[0] = Load16(in + (b + 1) * 1024 + mine);
      next[1] = Load16(in + (b + 1) * 1024 + mine + 512);
    }
    uint64_t sum[2] = {0, 0};
    Accumulate(sum, now[0], secret[0][0], secret[0][1]);
    Accumulate(sum, now[1], secret[1][0], secret[1][1]);
    AddStripes(sum, acc);
    CAIRN_UNROLL
    for (int i = 0; i < 2; ++i) acc[i] = (acc[i] ^ acc[i] >> 47 ^ scramble[i]) * kPrime32_1;
  }
  // The whole stripes that are left, then the last 64 bytes, whichever they are.
  const uint64_t rest = blocks * 1024, stripes = (n - 1 - rest) / 64;
  uint64_t sum[2] = {0, 0};
  CAIRN_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (static_cast<uint64_t>(stripe + 8 * half) < stripes) {
      const uint4 v = Load16(in + rest + mine + 512 * static_cast<uint64_t>(half));
      Accumulate(sum, v, secret[half][0], secret[half][1]);
    }
  }
  if (stripe == 0) {
    Accumulate(sum, Load16(in + n - 64 + j * 16), Secret(121 + 16 * j), Secret(129 + 16 * j));
  }
  AddStripes(sum, acc);
  uint64_t merged = FoldedProduct(acc[0] ^ Secret(11 + 16 * j), acc[1] ^ Secret(19 + 16 * j));
  CAIRN_UNROLL
  for (int d = 1; d < 4; d *= 2) merged += __shfl_xor_sync(kWholeWarp, merged, d);
  return Avalanche(n * kPrime1 + merged);
}

}  // namespace xxh3

CAIRN_DEVICE void HashRunsOfBatch(const HashBatch& batch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int index =
      static_cast<int>(blockIdx.x) * kHashRunsOfBlock + static_cast<int>(threadIdx.x) / kWarp;
  if (index >= batch.count) return;
  const HashRun& run = batch.runs[index];
  const auto* in = reinterpret_cast<const uint8_t*>(run.in);
  uint64_t hash = 0;
  if (run.bytes > 240) {
    hash = xxh3::HashLong(in, run.bytes, lane);
  } else if (lane == 0) {
    hash = xxh3::HashUpTo240(in, static_cast<int>(run.bytes));
  }
  if (lane != 0) return;
  if (run.hash != nullptr) *Global(run.hash) = hash;
  if (run.faults != nullptr && hash != run.expected) atomicOr(Global(run.faults), kHashFault);
}

}  // namespace cairn::kernels::cuda

CAIRN_KERNEL void __launch_bounds__(256)
    cairn_hash_runs(CAIRN_PARAMETER(cairn::kernels::cuda::HashBatch) batch) {
  cairn::kernels::cuda::HashRunsOfBatch(batch);
}
