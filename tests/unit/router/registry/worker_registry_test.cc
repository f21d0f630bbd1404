#include "services/router/registry/worker_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/captured_log.h"
#include "tests/unit/router/fake_link.h"

namespace cairn::router {
namespace {

using ::cairn::testing::CapturedLog;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class WorkerRegistryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    registry_ = std::make_unique<WorkerRegistry>(
        WorkerRegistry::Options{.addresses = {"a:1", "b:1"}, .weights_digest = "good"},
        workers_.links(), &clock_, [this](const std::string& address, const WorkerLoad* load) {
          told_.emplace_back(address, load != nullptr);
        });
    registry_->Tick();
  }
  static WorkerInfo Info(const std::string& weights = "good") {
    WorkerInfo info;
    info.weights_digest = weights;
    info.block_tokens = 64;
    return info;
  }
  RegisteredWorker At(size_t index) { return registry_->Workers()[index]; }

  FakeClock clock_;
  FakeWorkers workers_;
  std::vector<std::pair<std::string, bool>> told_;
  std::unique_ptr<WorkerRegistry> registry_;
};

TEST_F(WorkerRegistryTest, WorkerIsReadyOnceItHasToldItsLoad) {
  EXPECT_EQ(At(0).condition, WorkerCondition::kWaiting);
  EXPECT_NE(At(0).reason, "");
  workers_["a:1"].watches[0].observer->OnInfo(Info());
  EXPECT_EQ(At(0).condition, WorkerCondition::kWaiting);
  workers_["a:1"].watches[0].observer->OnReport({.load = {.prefill_seconds = 2}});
  EXPECT_EQ(At(0).condition, WorkerCondition::kReady);
  EXPECT_EQ(At(0).reason, "");
  EXPECT_EQ(At(0).report->load.prefill_seconds, 2);
  EXPECT_EQ(At(1).condition, WorkerCondition::kWaiting);
  EXPECT_EQ(told_, (std::vector<std::pair<std::string, bool>>{{"a:1", true}}));
}

TEST_F(WorkerRegistryTest, LostWorkerIsTriedAgainWithAGrowingPause) {
  auto& watches = workers_["a:1"].watches;
  workers_.Reach("a:1", Info());
  watches[0].observer->OnEnd(Errorf(StatusCode::kUnavailable, "gone"));
  EXPECT_EQ(At(0).condition, WorkerCondition::kWaiting);
  EXPECT_NE(At(0).reason.find("gone"), std::string::npos);
  EXPECT_EQ(told_.back(), std::make_pair(std::string("a:1"), false));
  registry_->Tick();
  EXPECT_EQ(watches.size(), 1u) << "at once";
  Duration pause = milliseconds(100);
  for (size_t i = 2; i < 12; ++i) {
    clock_.Advance(pause - milliseconds(1));
    registry_->Tick();
    EXPECT_EQ(watches.size(), i - 1);
    clock_.Advance(milliseconds(1));
    registry_->Tick();
    ASSERT_EQ(watches.size(), i);
    watches.back().observer->OnEnd(Errorf(StatusCode::kUnavailable, "gone"));
    pause = std::min<Duration>(pause * 2, seconds(5));
  }
  clock_.Advance(seconds(5));
  registry_->Tick();
  workers_.Reach("a:1", Info());
  EXPECT_EQ(At(0).condition, WorkerCondition::kReady);
  EXPECT_EQ(At(0).connects, 2u);
}

TEST_F(WorkerRegistryTest, AWorkerThatIsAwayIsOneLineOfTheLog) {
  registry_->SetAddresses({"a:1"});
  auto& watches = workers_["a:1"].watches;
  const auto lines = [&](int attempts) {
    CapturedLog captured;
    for (int i = 0; i < attempts; ++i) {
      watches.back().observer->OnEnd(Errorf(StatusCode::kUnavailable, "refused"));
      clock_.Advance(seconds(5));
      registry_->Tick();
    }
    return captured.Take();
  };
  const std::string never = lines(3);
  EXPECT_THAT(never,
              HasSubstr("router_worker_not_reached worker=a:1 error=\"UNAVAILABLE: refused\""));
  EXPECT_EQ(std::ranges::count(never, '\n'), 1) << never;
  workers_.Reach("a:1", Info());
  const std::string lost = lines(3);
  EXPECT_THAT(lost, HasSubstr("router_worker_lost worker=a:1"));
  EXPECT_EQ(std::ranges::count(lost, '\n'), 1) << lost;
}

TEST_F(WorkerRegistryTest, WorkerOfOtherWeightsOrThatDrainsGetsNothing) {
  workers_.Reach("a:1", Info("other"));
  EXPECT_EQ(At(0).condition, WorkerCondition::kUnsuitable);
  EXPECT_NE(At(0).reason.find("other"), std::string::npos);
  workers_.Reach("b:1", Info(), {.draining = true});
  EXPECT_EQ(At(1).condition, WorkerCondition::kDraining);
  workers_["b:1"].watches[0].observer->OnReport({});
  EXPECT_EQ(At(1).condition, WorkerCondition::kReady);
}

TEST_F(WorkerRegistryTest, WorkerOfTheRolePrefillIsReadyAndAnswersNothing) {
  WorkerInfo info = Info();
  info.role = WorkerRole::kPrefill;
  workers_.Reach("a:1", info);
  EXPECT_EQ(At(0).condition, WorkerCondition::kReady);
  EXPECT_FALSE(At(0).answers());
  EXPECT_NE(At(0).reason.find("role prefill"), std::string::npos);
  info.role = WorkerRole::kDecode;
  workers_.Reach("b:1", info);
  EXPECT_TRUE(At(1).answers());
  EXPECT_EQ(At(1).reason, "");
  // It was started again, with another role.
  workers_.Reach("a:1", info);
  EXPECT_TRUE(At(0).answers());
}

TEST_F(WorkerRegistryTest, SilentWorkerIsWatchedAnewAndItsOldWatchIsNotHeard) {
  workers_.Reach("a:1", Info());
  auto& watches = workers_["a:1"].watches;
  clock_.Advance(seconds(5));
  registry_->Tick();
  EXPECT_EQ(At(0).condition, WorkerCondition::kReady);
  clock_.Advance(milliseconds(1));
  registry_->Tick();
  EXPECT_EQ(At(0).condition, WorkerCondition::kWaiting);
  EXPECT_TRUE(watches[0].call->cancelled);
  watches[0].observer->OnReport({});
  EXPECT_EQ(At(0).condition, WorkerCondition::kWaiting);
  watches[0].observer->OnEnd(OkStatus());
  clock_.Advance(seconds(1));
  registry_->Tick();
  ASSERT_EQ(watches.size(), 2u);
  workers_.Reach("a:1", Info());
  EXPECT_EQ(At(0).condition, WorkerCondition::kReady);
}

TEST_F(WorkerRegistryTest, WorkersComeAndGoByName) {
  workers_.Reach("a:1", Info());
  workers_.Reach("b:1", Info());
  registry_->SetAddresses({"b:1", "c:1"});
  EXPECT_TRUE(workers_["a:1"].watches[0].call->cancelled);
  EXPECT_EQ(told_.back(), std::make_pair(std::string("a:1"), false));
  // What the old watch says is not heard, also by the worker that has its place.
  workers_["a:1"].watches[0].observer->OnReport({});
  registry_->Tick();
  ASSERT_EQ(registry_->Workers().size(), 2u);
  EXPECT_EQ(At(0).address, "c:1");
  EXPECT_EQ(At(0).condition, WorkerCondition::kWaiting);
  EXPECT_EQ(At(1).address, "b:1");
  EXPECT_EQ(At(1).condition, WorkerCondition::kReady) << "it was left alone";
  workers_.Reach("c:1", Info());
  EXPECT_EQ(At(0).condition, WorkerCondition::kReady);
  // A worker that comes back begins as a new one.
  registry_->SetAddresses({"a:1"});
  registry_->Tick();
  ASSERT_EQ(registry_->Workers().size(), 1u);
  EXPECT_EQ(At(0).condition, WorkerCondition::kWaiting);
  EXPECT_EQ(workers_["a:1"].watches.size(), 2u);
  registry_->SetAddresses({});
  EXPECT_TRUE(registry_->Workers().empty());
}

TEST_F(WorkerRegistryTest, ItsEndCancelsWatchesWhoseLastWordsChangeNothing) {
  workers_.Reach("a:1", Info());
  registry_.reset();
  EXPECT_TRUE(workers_["a:1"].watches[0].call->cancelled);
  EXPECT_TRUE(workers_["b:1"].watches[0].call->cancelled);
  told_.clear();
  workers_["a:1"].watches[0].observer->OnReport({});
  workers_["a:1"].watches[0].observer->OnEnd(OkStatus());
  EXPECT_TRUE(told_.empty());
}

}  // namespace
}  // namespace cairn::router
