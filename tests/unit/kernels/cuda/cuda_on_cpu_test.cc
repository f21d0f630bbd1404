// The emulation of kernels: each word of CUDA does what a GPU does, and planted faults are found by
// the builds that tests/support/cuda_on_cpu/README.md names.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <numeric>
#include <vector>

#include "kernels/cuda/device.h"
#include "tests/support/cuda_on_cpu/launch.h"

namespace cairn::kernels::cuda {
namespace {

using ::testing::ElementsAreArray;
using testing::Launch;

// ---- what works ----

void WriteGlobalIndex(unsigned* out) {
  const unsigned i = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
  out[i] = i;
}

TEST(CudaOnCpuTest, EveryThreadOfEveryBlockRunsOnceInEachOrder) {
  for (const uint64_t seed : {0, 1, 2, 3}) {
    std::vector<unsigned> got(2 * 3 * 40, 99), want(got.size());
    std::iota(want.begin(), want.end(), 0u);
    Launch({.blocks = {2, 3}, .threads = 40, .seed = seed}, WriteGlobalIndex, got.data());
    EXPECT_THAT(got, ElementsAreArray(want)) << "seed " << seed;
  }
}

// Without TSan, which rightly calls this kernel a race.
#if !defined(CUDA_ON_CPU_TSAN)
void NoteOrder(unsigned* next, unsigned* order) {
  order[(*next)++] = blockIdx.x * blockDim.x + threadIdx.x;
}

TEST(CudaOnCpuTest, SeedsChooseTheOrderAndEqualSeedsTheSame) {
  const auto order = [](uint64_t seed) {
    unsigned next = 0;
    std::vector<unsigned> v(3 * 64);
    Launch({.blocks = {3}, .threads = 64, .seed = seed}, NoteOrder, &next, v.data());
    return v;
  };
  std::vector<unsigned> sorted(3 * 64);
  std::iota(sorted.begin(), sorted.end(), 0u);
  EXPECT_EQ(order(0), sorted);
  EXPECT_EQ(order(5), order(5));
  EXPECT_NE(order(5), order(7));
  EXPECT_LT(order(4)[0], 64u) << "even seeds begin with the first block";
  EXPECT_GE(order(5)[0], 128u) << "odd seeds begin with the last block";
}
#endif

// Sums the block's values in shared memory.
void SumOfBlock(const int* in, int* out) {
  SharedArrays shared;
  int* v = shared.Take<int>(128);
  const unsigned i = threadIdx.x;
  v[i] = in[blockIdx.x * 128 + i];
  for (unsigned d = 64; d > 0; d /= 2) {
    __syncthreads();
    if (i < d) v[i] += v[i + d];
  }
  if (i == 0) out[blockIdx.x] = v[0];
}

TEST(CudaOnCpuTest, BlockBarriersOrderSharedMemory) {
  std::vector<int> in(4 * 128), out(4);
  std::iota(in.begin(), in.end(), 0);
  for (const uint64_t seed : {0, 1, 6}) {
    Launch({.blocks = {4}, .threads = 128, .shared_bytes = 512, .seed = seed}, SumOfBlock,
           static_cast<const int*>(in.data()), out.data());
    for (int b = 0; b < 4; ++b) EXPECT_EQ(out[static_cast<size_t>(b)], 128 * 128 * b + 127 * 64);
  }
}

void ShuffleAround(const uint64_t* in, uint64_t* out) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  uint64_t v = in[threadIdx.x];
  for (int d = 1; d < 32; d *= 2) v += __shfl_xor_sync(kWholeWarp, v, d);
  out[threadIdx.x] = v + 1000 * __shfl_sync(kWholeWarp, in[threadIdx.x], (lane + 1) % 32);
}

TEST(CudaOnCpuTest, ShufflesGiveTheValueOfTheOtherLane) {
  std::vector<uint64_t> in(64), out(64);
  std::iota(in.begin(), in.end(), uint64_t{0});
  for (const uint64_t seed : {0, 1, 2}) {
    Launch({.threads = 64, .seed = seed}, ShuffleAround, static_cast<const uint64_t*>(in.data()),
           out.data());
    for (size_t i = 0; i < 64; ++i) {
      const uint64_t sum = i < 32 ? 496 : 496 + 32 * 32;
      EXPECT_EQ(out[i], sum + 1000 * (i / 32 * 32 + (i + 1) % 32));
    }
  }
}

void CountAll(unsigned* bits, unsigned long long* count) {
  atomicOr(bits, 1u << threadIdx.x % 32);
  atomicAdd(count, 2ull);
}

TEST(CudaOnCpuTest, AtomicsOfAllBlocksAddUp) {
  unsigned bits = 0;
  unsigned long long count = 5;
  Launch({.blocks = {7}, .threads = 64, .seed = 3}, CountAll, &bits, &count);
  EXPECT_EQ(bits, ~0u);
  EXPECT_EQ(count, 5u + 2 * 7 * 64);
}

// Threads that have ended are not waited for.
void LeaveEarly(int* out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  if (threadIdx.x % 32 >= 8) return;
  __syncwarp();
  out[threadIdx.x] = 1;
}

TEST(CudaOnCpuTest, BarriersDoNotWaitForThreadsThatEnded) {
  std::vector<int> out(64, 0);
  Launch({.threads = 64, .seed = 9}, LeaveEarly, out.data());
  EXPECT_EQ(std::accumulate(out.begin(), out.end(), 0), 16);
}

// Two stages in flight, each read behind its wait.
void CopyThroughShared(const float* in, float* out, int stages, int* unlanded) {
  SharedArrays shared;
  auto* ring = shared.Take<float>(2 * 32 * 4);
  const unsigned lane = threadIdx.x;
  const auto fetch = [&](int stage) {
    if (stage < stages) {
      CopyAsync(ring + (stage % 2 * 32 + static_cast<int>(lane)) * 4,
                in + (stage * 32 + static_cast<int>(lane)) * 4);
    }
    CommitCopies();
  };
  fetch(0);
  if (std::isnan(ring[lane * 4])) atomicOr(reinterpret_cast<unsigned*>(unlanded), 1u);
  for (int stage = 0; stage < stages; ++stage) {
    fetch(stage + 1);
    WaitForCopies<1>();
    __syncwarp();
    const unsigned other = 31 - lane;
    for (unsigned i = 0; i < 4; ++i) {
      out[static_cast<unsigned>(stage) * 128 + other * 4 + i] =
          ring[static_cast<unsigned>(stage % 2) * 128 + other * 4 + i];
    }
    __syncwarp();
  }
  WaitForCopies<0>();
}

TEST(CudaOnCpuTest, CopiesAreNotThereBeforeTheyAreWaitedFor) {
  std::vector<float> in(5 * 128), out(5 * 128, -1);
  std::iota(in.begin(), in.end(), 1.0f);
  int unlanded = 0;
  Launch({.threads = 32, .shared_bytes = 1024, .seed = 1}, CopyThroughShared,
         static_cast<const float*>(in.data()), out.data(), 5, &unlanded);
  EXPECT_EQ(unlanded, 1) << "the target is NaN until the wait";
  EXPECT_EQ(out, in);
}

void CopyRun(const uint8_t* run, int bytes, uint8_t* out) {
  SharedArrays shared;
  auto* to = shared.Take<uint8_t>(96);
  for (int piece = static_cast<int>(threadIdx.x); piece < PiecesOf(run, bytes); piece += 2) {
    CopyPieceAsync(to, run, bytes, piece);
  }
  CommitCopies();
  WaitForCopies<0>();
  __syncthreads();
  if (threadIdx.x > 0) return;
  for (int i = 0; i < bytes; ++i) out[i] = to[SkipOf(run) + i];
}

TEST(CudaOnCpuTest, RunsAtAnyAddressComeToTheSamePlaceInTheirPieces) {
  for (size_t skip = 0; skip < 18; ++skip) {
    for (const size_t bytes : {1, 15, 16, 17, 40}) {
      alignas(16) uint8_t around[64];
      std::iota(around, around + 64, uint8_t{1});
      std::vector<uint8_t> out(bytes);
      Launch({.threads = 2, .shared_bytes = 96}, CopyRun,
             static_cast<const uint8_t*>(around + skip), static_cast<int>(bytes), out.data());
      EXPECT_TRUE(std::equal(out.begin(), out.end(), around + skip)) << skip << ", " << bytes;
    }
  }
}

TEST(CudaOnCpuTest, HalvesRoundToNearestEven) {
  EXPECT_EQ(ToHalf(1.0f), 0x3c00u);
  EXPECT_EQ(ToHalf(1.0f + 1.0f / 2048), 0x3c00u) << "a tie goes to the even half";
  EXPECT_EQ(ToHalf(1.0f + 3.0f / 2048), 0x3c02u);
  EXPECT_EQ(ToHalf(65520.0f), 0x7c00u);
  EXPECT_EQ(ToHalf(-0x1p-24f), 0x8001u);
  for (uint32_t h = 0; h < 0x7c00; ++h) ASSERT_EQ(ToHalf(FromHalf(h)), h);
}

// ---- planted faults ----

void NotAllReachTheBarrier(int* out) {
  if (threadIdx.x % 32 < 16) __syncthreads();
  out[threadIdx.x] = __shfl_xor_sync(kWholeWarp, 1, 1);
}
void TakeTooMuch(int* out) {
  SharedArrays shared;
  out[threadIdx.x] = shared.Take<int>(65)[0];
}
void EndWithoutWaiting(const float* in) {
  SharedArrays shared;
  CopyAsync(shared.Take<float>(4), in);
  CommitCopies();
}

using CudaOnCpuDeathTest = ::testing::Test;

TEST(CudaOnCpuDeathTest, EveryBuildEndsAtABarrierThatNotAllReach) {
  std::vector<int> out(64);
  EXPECT_DEATH(Launch({.threads = 64}, NotAllReachTheBarrier, out.data()),
               "block 0 0 0: threads wait for each other");
}

TEST(CudaOnCpuDeathTest, EveryBuildEndsAtSharedMemoryBeyondTheLaunch) {
  std::vector<int> out(1);
  EXPECT_DEATH(Launch({.shared_bytes = 256}, TakeTooMuch, out.data()),
               "more shared memory than the launch asked for");
}

TEST(CudaOnCpuDeathTest, EveryBuildEndsAtCopiesThatNobodyWaitedFor) {
  alignas(16) const float in[4] = {};
  EXPECT_DEATH(Launch({.shared_bytes = 16}, EndWithoutWaiting, static_cast<const float*>(in)),
               "copies that nobody waited for");
}

// A wait too late: the stage is read one copy too early.
void ReadTooEarly(const float* in, float* out) {
  SharedArrays shared;
  auto* to = shared.Take<float>(4);
  CopyAsync(to, in);
  CommitCopies();
  *out = to[1];
  WaitForCopies<0>();
}

TEST(CudaOnCpuTest, EveryBuildGivesNanForACopyThatIsReadTooEarly) {
  alignas(16) const float in[4] = {1, 2, 3, 4};
  float out = 0;
  Launch({.shared_bytes = 16}, ReadTooEarly, static_cast<const float*>(in), &out);
  EXPECT_TRUE(std::isnan(out));
}

// Neighbours exchange through shared memory, with and without a barrier.
template <bool kBarrier>
void Exchange(int* out) {
  SharedArrays shared;
  int* v = shared.Take<int>(64);
  v[threadIdx.x] = static_cast<int>(threadIdx.x) + 1;
  if (kBarrier) __syncthreads();
  out[threadIdx.x] = v[threadIdx.x ^ 33];
}
template <bool kBarrier>
void ExchangeInWarp(int* out) {
  SharedArrays shared;
  int* v = shared.Take<int>(32);
  v[threadIdx.x] = static_cast<int>(threadIdx.x) + 1;
  if (kBarrier) __syncwarp();
  out[threadIdx.x] = v[threadIdx.x ^ 1];
}
// A shuffle is no barrier.
void ExchangeBehindAShuffle(int* out) {
  SharedArrays shared;
  int* v = shared.Take<int>(32);
  v[threadIdx.x] = static_cast<int>(threadIdx.x) + 1;
  __shfl_xor_sync(kWholeWarp, 1, 1);
  out[threadIdx.x] = v[threadIdx.x ^ 1];
}
void TwoBlocksWriteOneWord(int* out) {
  if (threadIdx.x == blockIdx.x) *out = static_cast<int>(threadIdx.x);
}

TEST(CudaOnCpuTest, SomeOrderShowsAMissingBarrierEvenWithoutSanitizers) {
#if defined(CUDA_ON_CPU_TSAN)
  GTEST_SKIP() << "TSan reports the race: see the next tests";
#endif
  std::vector<int> out(64);
  int wrong = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    Launch({.threads = 64, .shared_bytes = 256, .seed = seed}, Exchange<false>, out.data());
    for (int i = 0; i < 64; ++i) wrong += out[static_cast<size_t>(i)] != (i ^ 33) + 1 ? 1 : 0;
    Launch({.threads = 64, .shared_bytes = 256, .seed = seed}, Exchange<true>, out.data());
    for (int i = 0; i < 64; ++i) EXPECT_EQ(out[static_cast<size_t>(i)], (i ^ 33) + 1);
  }
  EXPECT_GT(wrong, 0);
}

// Runs a kernel and ends the process. TSan makes the exit status 66 if it reported something.
template <typename Kernel>
[[noreturn]] void LaunchAndExit(const testing::LaunchShape& shape, Kernel kernel) {
  std::vector<int> out(64);
  Launch(shape, kernel, out.data());
  _exit(0);
}

class RaceTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if !defined(CUDA_ON_CPU_TSAN)
    GTEST_SKIP() << "only a build with TSan finds races";
#endif
    // A process of its own: a forked one hangs when TSan writes its report.
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
  static constexpr int kFound = 66, kNotFound = 0;
};

TEST_F(RaceTest, AMissingBlockBarrierIsReportedInAnyOrder) {
  for (const uint64_t seed : {0, 1}) {
    const testing::LaunchShape shape{.threads = 64, .shared_bytes = 256, .seed = seed};
    EXPECT_EXIT(LaunchAndExit(shape, Exchange<false>), ::testing::ExitedWithCode(kFound), "race");
    EXPECT_EXIT(LaunchAndExit(shape, Exchange<true>), ::testing::ExitedWithCode(kNotFound), "");
  }
}

TEST_F(RaceTest, AMissingWarpBarrierIsReported) {
  const testing::LaunchShape shape{.threads = 32, .shared_bytes = 128};
  EXPECT_EXIT(LaunchAndExit(shape, ExchangeInWarp<false>), ::testing::ExitedWithCode(kFound),
              "race");
  EXPECT_EXIT(LaunchAndExit(shape, ExchangeInWarp<true>), ::testing::ExitedWithCode(kNotFound), "");
}

TEST_F(RaceTest, AShuffleInPlaceOfABarrierIsReported) {
  const testing::LaunchShape shape{.threads = 32, .shared_bytes = 128};
  EXPECT_EXIT(LaunchAndExit(shape, ExchangeBehindAShuffle), ::testing::ExitedWithCode(kFound),
              "race");
}

TEST_F(RaceTest, BlocksThatWriteOneWordAreReported) {
  const testing::LaunchShape shape{.blocks = {2}, .threads = 2};
  EXPECT_EXIT(LaunchAndExit(shape, TwoBlocksWriteOneWord), ::testing::ExitedWithCode(kFound),
              "race");
}

void WriteBehind(int* out, int n) { out[n] = 1; }
void ReadBehindTheFirstArray(int* out, int n) {
  SharedArrays shared;
  int* first = shared.Take<int>(5);
  int* second = shared.Take<int>(5);
  second[0] = 1;
  out[0] = first[n];
}
void CopyFromBehind(const float* in, int) {
  SharedArrays shared;
  CopyAsync(shared.Take<float>(4), in + 4);
  CommitCopies();
  WaitForCopies<0>();
}

class BoundsDeathTest : public ::testing::Test {
 protected:
  void SetUp() override {
#if !defined(CUDA_ON_CPU_ASAN)
    GTEST_SKIP() << "only a build with ASan finds accesses outside of arrays";
#endif
  }
};

TEST_F(BoundsDeathTest, AWriteBehindABufferIsReported) {
  const std::unique_ptr<int[]> out(new int[4]);
  EXPECT_DEATH(Launch({}, WriteBehind, out.get(), 4), "heap-buffer-overflow");
}

TEST_F(BoundsDeathTest, AReadBehindASharedArrayIsReported) {
  const std::unique_ptr<int[]> out(new int[4]);
  EXPECT_DEATH(Launch({.shared_bytes = 64}, ReadBehindTheFirstArray, out.get(), 5),
               "use-after-poison");
}

TEST_F(BoundsDeathTest, ACopyFromBehindABufferIsReported) {
  const std::unique_ptr<float[]> in(new float[4]);
  EXPECT_DEATH(Launch({.shared_bytes = 16}, CopyFromBehind, static_cast<const float*>(in.get()), 0),
               "heap-buffer-overflow");
}

}  // namespace
}  // namespace cairn::kernels::cuda
