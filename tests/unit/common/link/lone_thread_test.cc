#include "common/link/lone_thread.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <semaphore>

#include "common/status/matchers.h"

namespace cairn::link {
namespace {

using cairn::testing::StatusIs;

TEST(LoneThreadTest, RunsTasksInOrder) {
  std::vector<int> ran;
  std::binary_semaphore done{0};
  LoneThread thread("lone");
  for (int i = 0; i < 10; ++i) {
    EXPECT_OK(thread.Post([&ran, i] { ran.push_back(i); }));
  }
  EXPECT_OK(thread.Post([&done] { done.release(); }));
  done.acquire();
  EXPECT_THAT(ran, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(LoneThreadTest, IsLeftBehindInATaskThatHangs) {
  // The state of the task outlives the thread's owner.
  struct Shared {
    std::binary_semaphore entered{0}, leave{0}, left{0};
    std::atomic<int> dropped{0};
  };
  const auto shared = std::make_shared<Shared>();
  {
    LoneThread thread("lone");
    EXPECT_OK(thread.Post([shared] {
      shared->entered.release();
      shared->leave.acquire();
      shared->left.release();
    }));
    shared->entered.acquire();
    for (size_t i = 0; i < LoneThread::kMostTasks; ++i) {
      EXPECT_OK(thread.Post([shared] { ++shared->dropped; }));
    }
    EXPECT_THAT(thread.Post([] {}), StatusIs(StatusCode::kResourceExhausted, ::testing::_));
  }
  shared->leave.release();
  shared->left.acquire();
  EXPECT_EQ(shared->dropped, 0) << "a task ran though its owner was gone";
}

}  // namespace
}  // namespace cairn::link
