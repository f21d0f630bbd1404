#include "cairn/kernels/thread_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "cairn/kernels/isa.h"

namespace cairn::kernels {
namespace {

TEST(ThreadPoolTest, EveryPieceIsDoneOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t pieces : {0, 1, 2, 7, 1000}) {
      std::vector<int> done(static_cast<size_t>(pieces));
      pool.ParallelFor(pieces, [&](int64_t piece, int thread) {
        EXPECT_GE(thread, 0);
        EXPECT_LT(thread, threads);
        done[static_cast<size_t>(piece)]++;
      });
      EXPECT_EQ(std::accumulate(done.begin(), done.end(), int64_t{0}), pieces);
      EXPECT_EQ(std::set<int>(done.begin(), done.end()).count(0), 0u);
    }
  }
}

TEST(ThreadPoolTest, WritesOfAllThreadsAreSeenAfterwards) {
  ThreadPool pool(3);
  std::vector<int64_t> values(64);
  // Short jobs, one behind the other: what a lost wake-up or a late worker would break.
  for (int64_t round = 1; round <= 20000; ++round) {
    pool.ParallelFor(64, [&](int64_t piece, int) { values[static_cast<size_t>(piece)] += 1; });
    ASSERT_EQ(values[static_cast<size_t>(round % 64)], round);
  }
}

TEST(ThreadPoolTest, SleepingWorkersWakeUp) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    // Longer than any spin: the worker sleeps when the next job comes.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> done{0};
    pool.ParallelFor(8, [&](int64_t, int) { done.fetch_add(1); });
    EXPECT_EQ(done.load(), 8);
  }
}

TEST(IsaTest, NamesAreReadBack) {
  for (const Isa isa :
       {Isa::kPortable, Isa::kNeon, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    EXPECT_EQ(ParseIsa(Name(isa)), isa);
  }
  EXPECT_EQ(ParseIsa("avx"), std::nullopt);
  EXPECT_TRUE(Supports(Isa::kPortable));
  EXPECT_TRUE(Supports(BestIsa()));
}

TEST(IsaTest, NoMachineHasTheInstructionsOfTwoArchitectures) {
  EXPECT_FALSE(Supports(Isa::kNeon) && Supports(Isa::kAvx2));
#if defined(__aarch64__)
  EXPECT_EQ(BestIsa(), Isa::kNeon);
#else
  EXPECT_FALSE(Supports(Isa::kNeon));
#endif
}

}  // namespace
}  // namespace cairn::kernels
