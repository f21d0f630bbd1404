#include "common/concurrency/runs_once.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace cairn {
namespace {

class RunsOnceTest : public ::testing::Test {
 protected:
  std::function<void(Status)> Make() {
    return RunsOnce([this, held = held_](const Status& status) { codes_.push_back(status.code()); },
                    [] { return Errorf(StatusCode::kCancelled, "dropped"); });
  }

  std::vector<StatusCode> codes_;
  std::shared_ptr<int> held_ = std::make_shared<int>();
};

TEST_F(RunsOnceTest, ACallPassesItsStatus) {
  Make()(Errorf(StatusCode::kNotFound, "gone"));
  EXPECT_EQ(codes_, std::vector{StatusCode::kNotFound});
}

TEST_F(RunsOnceTest, WithoutACallTheLastCopySaysThatItWasDropped) {
  auto callback = Make();
  auto copy = callback;
  callback = nullptr;
  EXPECT_TRUE(codes_.empty());
  copy = nullptr;
  EXPECT_EQ(codes_, std::vector{StatusCode::kCancelled});
}

TEST_F(RunsOnceTest, ASecondCallHasNoEffect) {
  const auto callback = Make();
  callback(OkStatus());
  callback(OkStatus());
  EXPECT_EQ(codes_, std::vector{StatusCode::kOk});
}

TEST_F(RunsOnceTest, ACopyThatStaysHoldsNothing) {
  const auto callback = Make();
  EXPECT_EQ(held_.use_count(), 2);
  callback(OkStatus());
  EXPECT_EQ(held_.use_count(), 1);
}

TEST_F(RunsOnceTest, TheValueMayBeAnyResult) {
  std::vector<Result<int>> results;
  const auto make = [&results] {
    return RunsOnce<Result<int>>(
        [&results](Result<int> result) { results.push_back(std::move(result)); },
        [] { return Errorf(StatusCode::kCancelled, "dropped"); });
  };
  make()(7);
  make();
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(*results[0], 7);
  EXPECT_EQ(results[1].status().code(), StatusCode::kCancelled);
}

}  // namespace
}  // namespace cairn
