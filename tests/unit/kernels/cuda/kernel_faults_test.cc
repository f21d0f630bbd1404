// Faults planted into pieces of the real kernels: which build of the emulation finds a barrier that
// is left out between the steps of a tile, of a row, of a histogram and of the coder's tables.

#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "kernels/cuda/rans.cuh"
#include "kernels/cuda/softmax.cuh"
#include "tests/support/cuda_on_cpu/launch.h"

namespace cairn::kernels::cuda {
namespace {

using testing::Launch;
using testing::LaunchShape;

// The part that is left out.
enum class Missing { kNothing, kBeforeLoad, kBehindLoad, kBeforeNextLoad };

constexpr int kTokens = 32;
constexpr int kDim = 2 * kTileChannels;

// Sums over the channels, as row_scores.cuh has them: two loads of a tile.
template <Missing kMissing>
void SumTile(const TokenRows* x, float* out) {
  SharedArrays shared;
  const TokenTile<kTokens> tile(&shared);
  const int thread = static_cast<int>(threadIdx.x);
  tile.Open(*x, 0);
  float sum = 0.0f;
  for (int begin = 0; begin < kDim; begin += kTileChannels) {
    if (kMissing != (begin == 0 ? Missing::kBeforeLoad : Missing::kBeforeNextLoad)) __syncthreads();
    tile.Load(begin, kDim);
    if (kMissing != Missing::kBehindLoad) __syncthreads();
    for (int c = 0; c < kTileChannels; ++c) sum += tile.Channel(c)[thread % kTokens];
  }
  out[thread] = sum;
}

// Keys that are all 1, in one page.
class Keys {
 public:
  Keys() : numbers_(static_cast<size_t>(kTokens * kDim), uint16_t{0x3c00}) {
    page_ = reinterpret_cast<const std::byte*>(numbers_.data());
    rows_.kv.pages = &page_;
    rows_.kv.block_tokens = kTokens;
    rows_.kv.head_dim = kDim;
    rows_.end = kTokens;
  }
  const TokenRows* rows() const { return &rows_; }

 private:
  std::vector<uint16_t> numbers_;
  const std::byte* page_ = nullptr;
  TokenRows rows_;
};

constexpr LaunchShape kTileShape{.threads = 128, .shared_bytes = TokenTile<kTokens>::kSharedBytes};

template <Missing kMissing>
int WrongSums(uint64_t seed) {
  const Keys keys;
  std::vector<float> out(kTileShape.threads);
  LaunchShape shape = kTileShape;
  shape.seed = seed;
  Launch(shape, SumTile<kMissing>, keys.rows(), out.data());
  int wrong = 0;
  for (const float sum : out) wrong += sum != static_cast<float>(kDim) ? 1 : 0;
  return wrong;
}

#if !defined(CUDA_ON_CPU_TSAN) && !defined(CUDA_ON_CPU_ASAN)
// With addresses that nobody has written, reading through them ends the process.
TEST(KernelFaultsDeathTest, EveryBuildFindsATileThatIsLoadedBeforeItIsOpen) {
  EXPECT_DEATH(WrongSums<Missing::kBeforeLoad>(3), "");
}
#endif

#if !defined(CUDA_ON_CPU_TSAN)
TEST(KernelFaultsTest, SomeOrderShowsABarrierThatATileLacks) {
  int wrong = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    EXPECT_EQ(WrongSums<Missing::kNothing>(seed), 0);
    wrong += WrongSums<Missing::kBehindLoad>(seed);
  }
  EXPECT_GT(wrong, 0);
}
#endif

// Each lane begins with the row's first number, which its own lane may have replaced by then: what
// Exponentials does not do.
template <bool kOwn>
void ExponentialsFromTheFirst(float* x) {
  const int lane = RowLane();
  float top = kOwn ? x[lane] : x[0];
  top = LargestOfLanes(Larger(top, x[lane]));
  x[lane] = ExpOf(x[lane] - top);
}

// A histogram whose bins are counted in before all of them are 0.
template <bool kBarrier>
void Histogram(const uint32_t* in, uint32_t* out) {
  SharedArrays shared;
  auto* const bins = shared.Take<uint32_t>(64);
  bins[threadIdx.x] = 0;
  if (kBarrier) __syncthreads();
  atomicAdd(bins + in[threadIdx.x], 1u);
  __syncthreads();
  out[threadIdx.x] = bins[threadIdx.x];
}

// The coder's tables, read before all warps have filled them.
template <bool kBarrier>
void ReadTables(uint32_t* out) {
  SharedArrays shared;
  auto* const starts = shared.Take<uint32_t>(rans::kTables);
  if (threadIdx.x < rans::kTables) {
    uint32_t sum = 0;
    for (int s = 0; s < rans::kSymbols; ++s) {
      sum += rans::kConstants.frequencies[threadIdx.x][s];
    }
    starts[threadIdx.x] = sum;
  }
  if (kBarrier) __syncthreads();
  out[threadIdx.x] = starts[threadIdx.x % rans::kTables];
}

TEST(KernelFaultsTest, EveryTableOfTheCoderHasAllSlots) {
  std::vector<uint32_t> out(64);
  Launch({.threads = 64, .shared_bytes = 64, .seed = 5}, ReadTables<true>, out.data());
  EXPECT_EQ(out, std::vector<uint32_t>(64, rans::kSlots));
}

// In several orders: TSan remembers only four accesses to each 8 bytes. Of many readers, it may
// have forgotten those that another thread's write has a race with.
template <typename Kernel, typename... Arguments>
[[noreturn]] void LaunchAndLeave(LaunchShape shape, Kernel kernel, Arguments... arguments) {
  for (shape.seed = 0; shape.seed < 8; ++shape.seed) Launch(shape, kernel, arguments...);
  _exit(0);
}

class KernelRaceTest : public ::testing::Test {
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

TEST_F(KernelRaceTest, ATileThatLacksABarrierIsReportedInAnyOrder) {
  const Keys keys;
  std::vector<float> out(kTileShape.threads);
  const auto ends = [](int status) { return ::testing::ExitedWithCode(status); };
  EXPECT_EXIT(LaunchAndLeave(kTileShape, SumTile<Missing::kBehindLoad>, keys.rows(), out.data()),
              ends(kFound), "race");
  EXPECT_EXIT(
      LaunchAndLeave(kTileShape, SumTile<Missing::kBeforeNextLoad>, keys.rows(), out.data()),
      ends(kFound), "race");
  EXPECT_EXIT(LaunchAndLeave(kTileShape, SumTile<Missing::kNothing>, keys.rows(), out.data()),
              ends(kNotFound), "");
}

TEST_F(KernelRaceTest, ARowWhoseFirstNumberAllLanesReadIsReported) {
  std::vector<float> x(16, 0.5f);
  EXPECT_EXIT(LaunchAndLeave({.threads = 16}, ExponentialsFromTheFirst<false>, x.data()),
              ::testing::ExitedWithCode(kFound), "race");
  EXPECT_EXIT(LaunchAndLeave({.threads = 16}, ExponentialsFromTheFirst<true>, x.data()),
              ::testing::ExitedWithCode(kNotFound), "");
}

TEST_F(KernelRaceTest, CountsBeforeAllBinsAreZeroAreReported) {
  std::vector<uint32_t> in(64), out(64);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint32_t>(i * 7 % 64);
  const LaunchShape shape{.threads = 64, .shared_bytes = 256};
  const auto* const from = static_cast<const uint32_t*>(in.data());
  EXPECT_EXIT(LaunchAndLeave(shape, Histogram<false>, from, out.data()),
              ::testing::ExitedWithCode(kFound), "race");
  EXPECT_EXIT(LaunchAndLeave(shape, Histogram<true>, from, out.data()),
              ::testing::ExitedWithCode(kNotFound), "");
}

TEST_F(KernelRaceTest, TablesThatAreReadTooEarlyAreReported) {
  std::vector<uint32_t> out(64);
  const LaunchShape shape{.threads = 64, .shared_bytes = 64};
  EXPECT_EXIT(LaunchAndLeave(shape, ReadTables<false>, out.data()),
              ::testing::ExitedWithCode(kFound), "race");
}

}  // namespace
}  // namespace cairn::kernels::cuda
