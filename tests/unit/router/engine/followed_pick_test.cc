// Picks for callers that send the request themselves, and say when it has ended.
#include <gtest/gtest.h>

#include "tests/unit/router/engine/engine_fixture.h"

namespace cairn::router {
namespace {

using std::chrono::seconds;

class FollowedPickTest : public EngineFixture {
 protected:
  void SetUp() override {
    LoadModel();
    Make({});
  }
  void Make(RouterEngine::Options options, double max_wait_seconds = 0) {
    MakeDispatcher({"a:1", "b:1"}, {.max_wait_seconds = max_wait_seconds});
    options.model_id = "small";
    options.context_tokens = 512;
    MakeEngine(options);
  }
  void Reach(const std::string& address, double prefill_seconds = 0) {
    WorkerInfo info;
    info.block_tokens = 64;
    info.context_tokens = 512;
    info.fingerprint = Sha256::Of("namespace");
    WorkerReport report;
    report.load.prefill_seconds = prefill_seconds;
    workers_.Reach(address, info, report);
  }
  static PickAsk Tokens(size_t count) {
    PickAsk ask;
    ask.request.prompt = std::vector<model::TokenId>(count, 30);
    return ask;
  }
  std::variant<FollowedPick, GenerateError> Pick(PickAsk ask) {
    std::optional<std::variant<FollowedPick, GenerateError>> got;
    engine_->PickAndFollow(std::move(ask), [&got](auto picked) { got = std::move(picked); });
    executor_.RunAll();
    if (!got) {
      ADD_FAILURE() << "it was not answered";
      return GenerateError{.status = InvalidArgument("none")};
    }
    return *std::move(got);
  }
  FollowedPick Picked(PickAsk ask) {
    auto picked = Pick(std::move(ask));
    if (const auto* error = std::get_if<GenerateError>(&picked)) {
      ADD_FAILURE() << Message(error->status);
      return {};
    }
    return std::get<FollowedPick>(std::move(picked));
  }
  uint64_t Followed(const std::string& worker) {
    for (const auto& one : dispatcher_->numbers().workers) {
      if (one.worker == worker) return one.followed;
    }
    return 0;
  }
};

TEST_F(FollowedPickTest, ARequestCountsUntilItsLeaseEnds) {
  Reach("a:1");
  FollowedPick pick = Picked(Tokens(100));
  EXPECT_EQ(pick.pick.worker, "a:1");
  EXPECT_EQ(pick.pick.prompt_tokens, 100u);
  EXPECT_EQ(Followed("a:1"), 1u);
  EXPECT_EQ(engine_->numbers().active, 1u);
  EXPECT_FALSE(engine_->Drain(TimePoint()));
  pick.lease.reset();
  EXPECT_EQ(Followed("a:1"), 0u);
  EXPECT_EQ(engine_->numbers().active, 0u);
  EXPECT_TRUE(engine_->Drain(clock_.Now()));
}

TEST_F(FollowedPickTest, OnlyWholeAnswersSayHowLongAnswersAre) {
  Reach("a:1");
  const double before = dispatcher_->numbers().answer_tokens;
  FollowedPick cut = Picked(Tokens(100));
  cut.lease->Generated(5);
  cut.lease.reset();
  EXPECT_EQ(dispatcher_->numbers().answer_tokens, before);
  FollowedPick whole = Picked(Tokens(100));
  whole.lease->Generated(4);
  whole.lease->Generated(6);
  whole.lease->Completed();
  whole.lease.reset();
  EXPECT_NEAR(dispatcher_->numbers().answer_tokens, before + 0.01 * (10 - before), 1e-9);
}

TEST_F(FollowedPickTest, TheNextTurnGoesToTheSameWorker) {
  Reach("a:1");
  Reach("b:1");
  const std::string first = Picked(Tokens(300)).pick.worker;
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Picked(Tokens(320)).pick.worker, first);
}

TEST_F(FollowedPickTest, OnlyWorkersThatTheCallerWantsArePicked) {
  Reach("a:1");
  Reach("b:1", /*prefill_seconds=*/5);
  for (int i = 0; i < 5; ++i) {
    PickAsk ask = Tokens(100);
    ask.may = [](const std::string& worker) { return worker == "b:1"; };
    const FollowedPick pick = Picked(std::move(ask));
    EXPECT_EQ(pick.pick.worker, "b:1");
    EXPECT_FALSE(pick.pick.candidates[0].usable);
  }
  PickAsk none = Tokens(100);
  none.may = [](const std::string&) { return false; };
  auto picked = Pick(std::move(none));
  ASSERT_TRUE(std::holds_alternative<GenerateError>(picked));
  EXPECT_EQ(std::get<GenerateError>(picked).status.code(), StatusCode::kUnavailable);
}

TEST_F(FollowedPickTest, WithoutAPromptLoadsDecide) {
  Reach("a:1", /*prefill_seconds=*/5);
  Reach("b:1");
  PickAsk ask;
  ask.has_prompt = false;
  const FollowedPick pick = Picked(std::move(ask));
  EXPECT_EQ(pick.pick.worker, "b:1");
  EXPECT_EQ(pick.pick.prompt_tokens, 0u);
}

TEST_F(FollowedPickTest, ErrorsNameTheFieldAndWhenToTryAgain) {
  Make({.max_requests = 1}, /*max_wait_seconds=*/2);
  const auto error = [&](PickAsk ask) {
    auto picked = Pick(std::move(ask));
    return std::holds_alternative<GenerateError>(picked) ? std::get<GenerateError>(picked)
                                                         : GenerateError{};
  };
  EXPECT_EQ(error(Tokens(100)).status.code(), StatusCode::kUnavailable);
  Reach("a:1", /*prefill_seconds=*/9);
  const GenerateError shed = error(Tokens(100));
  EXPECT_EQ(shed.status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(shed.retry_after, seconds(7));
  PickAsk other = Tokens(100);
  other.request.model = "other";
  EXPECT_EQ(error(std::move(other)).field, "model");
  EXPECT_EQ(error(Tokens(0)).field, "prompt");
  Reach("b:1");
  const FollowedPick first = Picked(Tokens(100));
  EXPECT_EQ(error(Tokens(100)).status.code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace cairn::router
