#include "common/concurrency/executor.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <latch>
#include <memory>

#include "common/status/matchers.h"

namespace cairn {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ThreadPoolTest, RunsEverythingThatWasPosted) {
  std::atomic<int> ran{0};
  ThreadPool pool({.name = "test", .threads = 3, .queue_capacity = 1000});
  for (int i = 0; i < 1000; ++i) ASSERT_OK(pool.Post([&] { ++ran; }));
  pool.Stop();
  EXPECT_EQ(ran, 1000);
}

TEST(ThreadPoolTest, OneThreadKeepsTheOrder) {
  std::vector<int> order;
  ThreadPool pool({.name = "test", .threads = 1});
  for (int i = 0; i < 5; ++i) ASSERT_OK(pool.Post([&order, i] { order.push_back(i); }));
  pool.Stop();
  EXPECT_THAT(order, ElementsAre(0, 1, 2, 3, 4));
}

TEST(ThreadPoolTest, ThreadsGiveWayAsFarAsTheyAreTold) {
  const auto niceness = [] {
    return getpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)));
  };
  const int mine = niceness();
  std::atomic<int> usual{-100}, nice{-100};
  ThreadPool pool({.name = "usual"});
  ThreadPool giving_way({.name = "nice", .niceness = 19});
  ASSERT_OK(pool.Post([&] { usual = niceness(); }));
  ASSERT_OK(giving_way.Post([&] { nice = niceness(); }));
  pool.Stop();
  giving_way.Stop();
  EXPECT_EQ(usual, mine);
  EXPECT_EQ(nice, 19);
  EXPECT_EQ(niceness(), mine);
}

TEST(ThreadPoolTest, FullQueueRefusesAndDestroysTheTask) {
  std::latch running(1), gate(1);
  ThreadPool pool({.name = "small", .threads = 1, .queue_capacity = 2});
  ASSERT_OK(pool.Post([&] {
    running.count_down();
    gate.wait();
  }));
  running.wait();
  // The running task does not count.
  ASSERT_OK(pool.Post([] {}));
  ASSERT_OK(pool.Post([] {}));
  EXPECT_EQ(pool.QueueDepth(), 2u);
  auto held = std::make_shared<int>(1);
  EXPECT_THAT(
      pool.Post([held] { FAIL() << "a refused task ran"; }),
      StatusIs(StatusCode::kResourceExhausted, HasSubstr("small: queue is full (2 tasks)")));
  EXPECT_EQ(held.use_count(), 1);
  gate.count_down();
}

TEST(ThreadPoolTest, StopRunsWhatIsQueuedThenRefuses) {
  std::latch running(1), gate(1);
  std::atomic<int> ran{0};
  ThreadPool pool({.name = "test", .threads = 1});
  ASSERT_OK(pool.Post([&] {
    running.count_down();
    gate.wait();
  }));
  running.wait();
  for (int i = 0; i < 10; ++i) ASSERT_OK(pool.Post([&] { ++ran; }));
  gate.count_down();
  pool.Stop();
  EXPECT_EQ(ran, 10);
  EXPECT_THAT(pool.Post([] {}), StatusIs(StatusCode::kUnavailable, HasSubstr("test: stopped")));
  pool.Stop();
}

TEST(ThreadPoolTest, TasksMayPost) {
  std::latch done(1);
  ThreadPool pool({.name = "test", .threads = 1});
  ASSERT_OK(pool.Post([&] { EXPECT_OK(pool.Post([&] { done.count_down(); })); }));
  done.wait();
}

TEST(ManualExecutorTest, RunsOnlyWhenTold) {
  ManualExecutor executor;
  std::vector<int> order;
  EXPECT_FALSE(executor.RunOne());
  ASSERT_OK(executor.Post([&] {
    order.push_back(1);
    EXPECT_OK(executor.Post([&] { order.push_back(3); }));
  }));
  ASSERT_OK(executor.Post([&] { order.push_back(2); }));
  EXPECT_EQ(executor.Pending(), 2u);
  EXPECT_TRUE(order.empty());
  EXPECT_TRUE(executor.RunOne());
  EXPECT_THAT(order, ElementsAre(1));
  EXPECT_EQ(executor.RunAll(), 2u);
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(InlineExecutorTest, RunsInsideThePost) {
  InlineExecutor executor;
  bool ran = false;
  ASSERT_OK(executor.Post([&] { ran = true; }));
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace cairn
