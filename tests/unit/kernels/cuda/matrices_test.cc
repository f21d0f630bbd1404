// The emulation of tensor cores, of barriers in shared memory and of bulk copies: each does what a
// GPU does, and planted faults are found.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/cuda/device_sm90.h"
#include "tests/support/cuda_on_cpu/launch.h"

namespace cairn::kernels::cuda {
namespace {

using testing::Launch;

// Small whole numbers, so that all sums are exact.
std::vector<uint16_t> SomeHalves(size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<uint16_t> v(n);
  for (uint16_t& h : v) {
    h = static_cast<uint16_t>(ToHalf(static_cast<float>(static_cast<int>(rng() % 17) - 8)));
  }
  return v;
}

// c = a b^T for a [m][16], b [n][16].
std::vector<float> Products(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b) {
  std::vector<float> c;
  for (size_t i = 0; i < a.size() / 16; ++i) {
    for (size_t j = 0; j < b.size() / 16; ++j) {
      float sum = 0;
      for (size_t k = 0; k < 16; ++k) sum += FromHalf(a[i * 16 + k]) * FromHalf(b[j * 16 + k]);
      c.push_back(sum);
    }
  }
  return c;
}

// 16 x 16 numbers of a, 16 x 16 of b, through shared memory.
template <bool kBfloat16>
void MultiplySmall(const uint16_t* a, const uint16_t* b, float* c) {
  SharedArrays shared;
  auto* const left = shared.Take<uint16_t>(256);
  auto* const right = shared.Take<uint16_t>(256);
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) {
    left[i] = a[i];
    right[i] = b[i];
  }
  __syncwarp();
  uint32_t l[4], r[4];
  LoadMatrices<false>(l, left + lane % 16 * 16 + lane / 16 * 8);
  LoadMatrices<false>(r, right + (lane % 8 + lane / 16 * 8) * 16 + lane / 8 % 2 * 8);
  for (int half = 0; half < 2; ++half) {
    float sums[4] = {};
    MultiplyAdd<kBfloat16 ? Number16::kBfloat16 : Number16::kHalf>(sums, l,
                                                                   {r[2 * half], r[2 * half + 1]});
    for (int i = 0; i < 4; ++i) {
      c[(lane / 4 + i / 2 * 8) * 16 + half * 8 + lane % 4 * 2 + i % 2] = sums[i];
    }
  }
}

TEST(MatricesTest, SmallMatricesMultiply) {
  const std::vector<uint16_t> a = SomeHalves(256, 1), b = SomeHalves(256, 2);
  std::vector<float> c(256);
  for (const uint64_t seed : {0, 5}) {
    Launch({.threads = 32, .shared_bytes = 1024, .seed = seed}, MultiplySmall<false>, a.data(),
           b.data(), c.data());
    EXPECT_EQ(c, Products(a, b));
  }
}

TEST(MatricesTest, Bfloat16HasItsOwnExponents) {
  const std::vector<uint16_t> one(256, 0x3f80), large(256, 0x7b80);  // 1 and 2^120.
  std::vector<float> c(256);
  Launch({.threads = 32, .shared_bytes = 1024}, MultiplySmall<true>, one.data(), one.data(),
         c.data());
  EXPECT_EQ(c, std::vector<float>(256, 16.0f));
  Launch({.threads = 32, .shared_bytes = 1024}, MultiplySmall<true>, one.data(), large.data(),
         c.data());
  EXPECT_EQ(c, std::vector<float>(256, std::ldexp(1.0f, 124)));
}

void TransposeSmall(const uint16_t* a, uint16_t* out) {
  SharedArrays shared;
  auto* const tile = shared.Take<uint16_t>(256);
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) tile[i] = a[i];
  __syncwarp();
  uint32_t words[4];
  LoadMatrices<true>(words, tile + lane * 8);
  for (int m = 0; m < 4; ++m) {
    for (int i = 0; i < 2; ++i) {
      out[m * 64 + lane / 4 * 8 + lane % 4 * 2 + i] =
          static_cast<uint16_t>(words[m] >> 16 * i & 0xffff);
    }
  }
}

TEST(MatricesTest, MatricesAreTransposedOnTheirWay) {
  const std::vector<uint16_t> a = SomeHalves(256, 3);
  std::vector<uint16_t> out(256);
  Launch({.threads = 32, .shared_bytes = 512, .seed = 3}, TransposeSmall, a.data(), out.data());
  for (size_t m = 0; m < 4; ++m) {
    for (size_t r = 0; r < 8; ++r) {
      for (size_t c = 0; c < 8; ++c) EXPECT_EQ(out[m * 64 + r * 8 + c], a[m * 64 + c * 8 + r]);
    }
  }
}

// ---- bulk copies and products of warp groups ----

// The fault of a block.
enum class Fault { kNone, kNoWaitForSums, kArriveTooEarly, kNoFull };

constexpr int kRounds = 4;
constexpr int kTile = 128 * 128;  // Bytes: 128 rows of 64 numbers.

// One warp of the first warp group copies kRounds tiles of b, one after the other, into one place.
// The other group multiplies 64 rows of each with 128 rows of it.
template <Fault kFault>
void MultiplyTiles(const MatrixMap* map, float* out) {
  SharedArrays shared;
  uint8_t* const tile = AlignShared1024(shared.Take<uint8_t>(kTile + 1024));
  auto* const barriers = shared.Take<uint64_t>(2);
  uint64_t *const full = barriers, *const empty = barriers + 1;
  if (threadIdx.x == 0) {
    InitialiseBarrier(full, 1);
    InitialiseBarrier(empty, 4);
    FenceBarriers();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    for (int i = 0; threadIdx.x == 0 && i < kRounds; ++i) {
      const auto parity = static_cast<unsigned>(i % 2);
      WaitPhase(empty, parity ^ 1);
      if (kFault == Fault::kNoFull && i == 1) return;
      ArriveExpecting(full, kTile);
      for (int box = 0; box < 2; ++box)
        CopyBox(tile + box * kTile / 2, map, 64 * i + 64 * box, 0, full);
    }
    return;
  }
  float sums[16][4];
  GroupProducts products;
  for (int i = 0; i < kRounds; ++i) {
    WaitPhase(full, static_cast<unsigned>(i % 2));
    if (kFault == Fault::kArriveTooEarly && threadIdx.x % 32 == 0) Arrive(empty);
    products.Begin();
    for (int step = 0; step < 4; ++step) {
      products.MultiplyShared(sums, MatrixAt(tile + 32 * step, 0, 1024),
                              MatrixAt(tile + 32 * step, 0, 1024), i > 0 || step > 0);
    }
    products.Commit();
    if (kFault != Fault::kNoWaitForSums) products.Wait();
    __syncwarp();
    if (kFault != Fault::kArriveTooEarly && threadIdx.x % 32 == 0) Arrive(empty);
  }
  const unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4;
  for (unsigned n = 0; n < 16; ++n) {
    for (unsigned v = 0; v < 4; ++v) {
      out[(row + v / 2 * 8) * 128 + n * 8 + lane % 4 * 2 + v % 2] = sums[n][v];
    }
  }
}

constexpr int kMatrixRows = 64 * kRounds + 32;  // The last box is half outside.

struct Tiles {
  std::vector<uint16_t> numbers = SomeHalves(kMatrixRows * 64, 4);
  MatrixMap map = MapOnCpu(numbers.data(), kMatrixRows, 64, 64);

  template <Fault kFault>
  std::vector<float> Run(uint64_t seed) {
    std::vector<float> out(64 * 128);
    Launch({.threads = 256, .shared_bytes = kTile + 1024 + 16, .seed = seed}, MultiplyTiles<kFault>,
           static_cast<const MatrixMap*>(&map), out.data());
    return out;
  }
};

TEST(MatricesTest, WarpGroupsMultiplyWhatBulkCopiesBring) {
  Tiles tiles;
  std::vector<float> want(64 * 128);
  for (int i = 0; i < kRounds; ++i) {
    for (int r = 0; r < 64; ++r) {
      for (int n = 0; n < 128; ++n) {
        for (int k = 0; k < 64; ++k) {
          if (64 * i + n >= kMatrixRows) continue;
          want[static_cast<size_t>(r * 128 + n)] +=
              FromHalf(tiles.numbers[static_cast<size_t>((64 * i + r) * 64 + k)]) *
              FromHalf(tiles.numbers[static_cast<size_t>((64 * i + n) * 64 + k)]);
        }
      }
    }
  }
  for (const uint64_t seed : {0, 1, 2}) EXPECT_EQ(tiles.Run<Fault::kNone>(seed), want) << seed;
}

// Columns of b in lines: the values of attention.
void MultiplyTransposed(const uint16_t* a, const uint16_t* b, float* out) {
  SharedArrays shared;
  uint8_t* const tile = AlignShared1024(shared.Take<uint8_t>(16 * 256 + 1024));
  // [two blocks of 64 columns][16 rows][128 bytes], swizzled.
  for (unsigned i = threadIdx.x; i < 16 * 128; i += 128) {
    const unsigned k = i / 128, n = i % 128;
    const unsigned at = n / 64 * 2048 + k * 128 + ((n % 64 / 8) ^ (k % 8)) * 16 + n % 8 * 2;
    *reinterpret_cast<uint16_t*>(tile + at) = b[n * 16 + k];
  }
  FenceForProducts();
  __syncthreads();
  const unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  const auto pair = [&](unsigned r, unsigned k) {
    return uint32_t{a[r * 16 + k]} | uint32_t{a[r * 16 + k + 1]} << 16;
  };
  const unsigned k = lane % 4 * 2;
  const uint32_t left[4] = {pair(row, k), pair(row + 8, k), pair(row, k + 8), pair(row + 8, k + 8)};
  float sums[16][4] = {};
  GroupProducts products;
  products.Begin();
  products.MultiplyRegisters(sums, left, MatrixAt(tile, 2048, 1024));
  products.Commit();
  products.Wait();
  for (unsigned n = 0; n < 16; ++n) {
    for (unsigned v = 0; v < 4; ++v) {
      out[(row + v / 2 * 8) * 128 + n * 8 + lane % 4 * 2 + v % 2] = sums[n][v];
    }
  }
}

TEST(MatricesTest, WarpGroupsMultiplyRegistersWithRowsOfSums) {
  const std::vector<uint16_t> a = SomeHalves(64 * 16, 5), b = SomeHalves(128 * 16, 6);
  std::vector<float> out(64 * 128);
  Launch({.threads = 128, .shared_bytes = 16 * 256 + 1024, .seed = 2}, MultiplyTransposed, a.data(),
         b.data(), out.data());
  EXPECT_EQ(out, Products(a, b));
}

void MeetInPart(int* out) {
  SharedArrays shared;
  int* const v = shared.Take<int>(64);
  if (threadIdx.x >= 64) return;
  v[threadIdx.x] = static_cast<int>(threadIdx.x) + 1;
  NamedBarrier(3, 64);
  out[threadIdx.x] = v[63 - threadIdx.x];
}

TEST(MatricesTest, NamedBarriersWaitForTheirThreads) {
  std::vector<int> out(64);
  for (const uint64_t seed : {0, 1, 4}) {
    Launch({.threads = 128, .shared_bytes = 256, .seed = seed}, MeetInPart, out.data());
    for (int i = 0; i < 64; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], 64 - i);
  }
}

// ---- planted faults ----

TEST(MatricesTest, EveryBuildGivesNanForSumsThatAreReadTooEarly) {
  Tiles tiles;
  EXPECT_TRUE(std::isnan(tiles.Run<Fault::kNoWaitForSums>(0)[0]));
}

void ReadBoxTooEarly(const MatrixMap* map, float* out) {
  SharedArrays shared;
  uint8_t* const tile = AlignShared1024(shared.Take<uint8_t>(kTile + 1024));
  auto* const full = shared.Take<uint64_t>(1);
  InitialiseBarrier(full, 1);
  ArriveExpecting(full, kTile / 2);
  CopyBox(tile, map, 0, 0, full);
  out[0] = FromHalf(*reinterpret_cast<const uint16_t*>(tile));
  WaitPhase(full, 0);
  out[1] = FromHalf(*reinterpret_cast<const uint16_t*>(tile));
}

TEST(MatricesTest, EveryBuildGivesNanForBulkCopiesThatAreReadTooEarly) {
  Tiles tiles;
  std::vector<float> out(2);
  Launch({.threads = 1, .shared_bytes = kTile + 1040}, ReadBoxTooEarly,
         static_cast<const MatrixMap*>(&tiles.map), out.data());
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_EQ(out[1], FromHalf(tiles.numbers[0]));
}

TEST(MatricesDeathTest, EveryBuildEndsAtAPhaseThatNeverEnds) {
  Tiles tiles;
  EXPECT_DEATH(tiles.Run<Fault::kNoFull>(0), "threads wait for each other");
}

void CopyAndEnd(const MatrixMap* map) {
  SharedArrays shared;
  uint8_t* const tile = AlignShared1024(shared.Take<uint8_t>(kTile + 1024));
  auto* const full = shared.Take<uint64_t>(1);
  InitialiseBarrier(full, 1);
  ArriveExpecting(full, kTile / 2);
  CopyBox(tile, map, 0, 0, full);
}

TEST(MatricesDeathTest, EveryBuildEndsAtBulkCopiesThatNobodyWaitedFor) {
  Tiles tiles;
  EXPECT_DEATH(Launch({.threads = 1, .shared_bytes = kTile + 1040}, CopyAndEnd,
                      static_cast<const MatrixMap*>(&tiles.map)),
               "bulk copies that nobody waited for");
}

TEST(MatricesRaceTest, AStageThatIsOverwrittenWhileItIsReadIsReported) {
#if !defined(CUDA_ON_CPU_TSAN)
  GTEST_SKIP() << "only a build with TSan finds races";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [](auto fault) {
    Tiles tiles;
    tiles.Run<decltype(fault)::value>(0);
    _exit(0);
  };
  EXPECT_EXIT(run(std::integral_constant<Fault, Fault::kArriveTooEarly>()),
              ::testing::ExitedWithCode(66), "race");
  EXPECT_EXIT(run(std::integral_constant<Fault, Fault::kNone>()), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cairn::kernels::cuda
