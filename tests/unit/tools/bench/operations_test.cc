#include "tools/cairn/bench/operations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "common/concurrency/mutex.h"
#include "common/status/matchers.h"

namespace cairn::cli::bench {
namespace {

using cairn::testing::StatusIs;
using ::testing::HasSubstr;

TEST(OperationsTest, EachIsDoneOnce) {
  Mutex mutex;
  std::multiset<uint32_t> seen;
  const Operations run = RunOperations(3, 100, 60, [&](uint32_t thread, uint32_t i) {
    EXPECT_LT(thread, 3u);
    MutexLock lock(mutex);
    seen.insert(i);
    return OkStatus();
  });
  EXPECT_OK(run.status);
  EXPECT_EQ(run.done, 100u);
  EXPECT_EQ(run.latencies_us.size(), 100u);
  EXPECT_GT(run.seconds, 0);
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_EQ(std::set<uint32_t>(seen.begin(), seen.end()).size(), 100u);
}

TEST(OperationsTest, AtLeastOneIsDoneAndTimeEndsIt) {
  const Operations run =
      RunOperations(1, UINT32_MAX, 0, [](uint32_t, uint32_t) { return OkStatus(); });
  EXPECT_EQ(run.done, 1u);
}

TEST(OperationsTest, AnErrorEndsAllThreads) {
  const Operations run = RunOperations(2, UINT32_MAX, 60, [](uint32_t, uint32_t i) {
    return i == 10 ? Errorf(StatusCode::kDataLoss, "wrong") : OkStatus();
  });
  EXPECT_THAT(run.status, StatusIs(StatusCode::kDataLoss, HasSubstr("wrong")));
}

}  // namespace
}  // namespace cairn::cli::bench
