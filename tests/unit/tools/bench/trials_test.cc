#include "tools/cairn/bench/trials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "common/status/matchers.h"

namespace cairn::cli::bench {
namespace {

using cairn::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Trial n gives n.
class Counting final : public Workload {
 public:
  Status Prepare() override { return OkStatus(); }
  Result<std::vector<Metric>> Trial(double) override {
    if (++trials_ == fail_at) return Errorf(StatusCode::kDataLoss, "wrong bytes");
    return std::vector<Metric>{{"throughput", "GB/s", static_cast<double>(trials_)}};
  }
  int fail_at = -1;

 private:
  int trials_ = 0;
};

// 10, 20, 30, ...
class Rising final : public Yardstick {
 public:
  std::string name() const override { return "rising"; }
  std::string description() const override { return "grows"; }
  Result<double> Measure() override { return value_ += 10; }

 private:
  double value_ = 0;
};

class TrialsTest : public ::testing::Test {
 protected:
  // `loads`: cores that others use in each trial; then none.
  Result<Trials> Run(std::deque<double> loads, const TrialOptions& options) {
    std::vector<std::unique_ptr<Yardstick>> yardsticks;
    yardsticks.push_back(std::make_unique<Rising>());
    return RunTrials(
        workload_, yardsticks, options,
        [&]() -> std::function<double()> {
          double load = 0;
          if (!loads.empty()) {
            load = loads.front();
            loads.pop_front();
          }
          return [load] { return load; };
        },
        [](const std::string&) {});
  }
  Counting workload_;
};

TEST_F(TrialsTest, YardsticksAreTakenBeforeAndAfterEachTrial) {
  const auto trials = Run({}, {.repeat = 3});
  ASSERT_OK(trials);
  ASSERT_EQ(trials->metrics.size(), 1u);
  EXPECT_THAT(trials->metrics[0].samples, ElementsAre(1, 2, 3));
  ASSERT_EQ(trials->yardsticks.size(), 1u);
  EXPECT_THAT(trials->yardsticks[0].samples, ElementsAre(15, 25, 35));
  EXPECT_EQ(trials->dropped, 0u);
  EXPECT_FALSE(trials->noisy);
}

TEST_F(TrialsTest, TrialsWithABusyNeighbourAreRepeated) {
  const auto trials = Run({0.1, 0.5, 0.0, 0.21}, {.repeat = 3, .most_dropped = 4});
  ASSERT_OK(trials);
  EXPECT_THAT(trials->metrics[0].samples, ElementsAre(1, 3, 5));
  EXPECT_THAT(trials->yardsticks[0].samples, ElementsAre(15, 35, 55))
      << "the yardstick of a trial is the one around it";
  EXPECT_EQ(trials->dropped, 2u);
  EXPECT_FALSE(trials->noisy);
}

TEST_F(TrialsTest, WhenTheNeighbourStaysTheQuietestAreTakenAndItIsSaid) {
  const auto trials = Run({0.9, 0.1, 0.4, 0.8, 0.7}, {.repeat = 2, .most_dropped = 2});
  ASSERT_OK(trials);
  EXPECT_THAT(trials->metrics[0].samples, ElementsAre(2, 3));
  EXPECT_EQ(trials->dropped, 3u);
  EXPECT_TRUE(trials->noisy);
  EXPECT_THAT(trials->foreign_cores, ElementsAre(0.1, 0.4));
}

TEST_F(TrialsTest, WrongBytesEndTheRun) {
  workload_.fail_at = 2;
  EXPECT_THAT(Run({}, {.repeat = 3}), StatusIs(StatusCode::kDataLoss, HasSubstr("wrong")));
}

}  // namespace
}  // namespace cairn::cli::bench
