#include "services/cache/cluster/members/bump_exchange.h"

#include "common/status/matchers.h"
#include "tests/simulation/cluster/light_engine.h"
#include "tests/unit/cache/cluster/members/held_links.h"

namespace cairn::cache {
namespace {

using cairn::testing::LightEngine;
using std::chrono::milliseconds;

std::vector<Bump> Bumps(size_t count, uint8_t kind) {
  std::vector<Bump> bumps(count);
  for (size_t i = 0; i < count; ++i) {
    bumps[i].fingerprint = Sha256::Of("namespace");
    bumps[i].id = {kind, static_cast<uint8_t>(i), static_cast<uint8_t>(i >> 8)};
  }
  return bumps;
}

class BumpExchangeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    exchange_.Attach(&here_);
    exchange_.SetMembers({"there", "elsewhere"});
  }
  // Links let go of callbacks before what these use is destroyed.
  void TearDown() override { links_.bumps.clear(); }
  static void Give(LightEngine& engine, size_t count, uint8_t kind) {
    ASSERT_OK(engine.TakeOverBumps(Bumps(count, kind)));
  }
  // Answers as the other member does, until nobody asks.
  void Serve() {
    while (!links_.bumps.empty()) {
      auto call = links_.TakeBumps();
      ++calls_;
      told_ += call.page.bumps.size();
      auto answer = AnswerBumps(&there_, call.page, there_tells_digest_);
      ASSERT_OK(answer);
      brought_ += answer->bumps.size();
      call.done(*std::move(answer));
      executor_.RunAll();
    }
  }

  FakeClock clock_;
  ManualExecutor executor_;
  testing::HeldLinks links_;
  LightEngine here_{{}, &clock_, nullptr, 1, [](const std::string&) {}};
  LightEngine there_{{}, &clock_, nullptr, 2, [](const std::string&) {}};
  BumpExchange exchange_{/*tells_digest=*/true, &links_, &executor_, &clock_};
  bool there_tells_digest_ = true;
  int calls_ = 0;
  size_t told_ = 0, brought_ = 0;
};

TEST_F(BumpExchangeTest, AfterwardsBothKnowTheSame) {
  Give(here_, 3, 1);
  Give(there_, 2, 2);
  EXPECT_FALSE(exchange_.done_once());
  exchange_.Begin("there");
  Serve();
  EXPECT_EQ(here_.BumpsDigest(), there_.BumpsDigest());
  EXPECT_EQ(here_.Bumps(0, 100).bumps.size(), 5u);
  EXPECT_TRUE(exchange_.done_once());
  EXPECT_EQ(calls_, 2);
}

TEST_F(BumpExchangeTest, MembersThatKnowTheSameTellOnlyTheirDigest) {
  Give(here_, 3, 1);
  Give(there_, 3, 1);
  exchange_.Begin("there", 7);
  Serve();
  EXPECT_TRUE(exchange_.Settled("there", 7));
  EXPECT_EQ(calls_, 1);
  EXPECT_EQ(told_ + brought_, 0u);
}

TEST_F(BumpExchangeTest, WhoLacksSomethingIsNotToldBackWhatItTold) {
  Give(here_, 3, 1);
  Give(there_, 3, 1);
  Give(there_, 2, 2);
  exchange_.Begin("there", 7);
  Serve();
  EXPECT_TRUE(exchange_.Settled("there", 7));
  EXPECT_EQ(here_.BumpsDigest(), there_.BumpsDigest());
  EXPECT_EQ(calls_, 1);
  EXPECT_EQ(told_, 0u);
}

TEST_F(BumpExchangeTest, AMemberOfTheVersionBeforeIsUnderstoodBothWays) {
  there_tells_digest_ = false;
  Give(here_, 3, 1);
  Give(there_, 2, 2);
  exchange_.Begin("there");
  Serve();
  EXPECT_EQ(here_.BumpsDigest(), there_.BumpsDigest());
  EXPECT_TRUE(exchange_.done_once());
  // One that is held at the version before, with one that is not.
  BumpExchange older(/*tells_digest=*/false, &links_, &executor_, &clock_);
  older.Attach(&here_);
  older.SetMembers({"there"});
  Give(here_, 3, 3);
  there_tells_digest_ = true;
  older.Begin("there");
  EXPECT_EQ(links_.bumps.front().page.digest, 0u);
  Serve();
  EXPECT_EQ(here_.BumpsDigest(), there_.BumpsDigest());
}

TEST_F(BumpExchangeTest, AMemberThatIsAskedTooOftenIsLeftAloneForLonger) {
  exchange_.Begin("there");
  links_.TakeBumps().done(Errorf(StatusCode::kResourceExhausted, "too often"));
  clock_.Advance(std::chrono::seconds(10) - milliseconds(1));
  exchange_.Begin("there");
  EXPECT_TRUE(links_.bumps.empty());
  clock_.Advance(milliseconds(1));
  exchange_.Begin("there");
  EXPECT_EQ(links_.bumps.size(), 1u);
}

TEST_F(BumpExchangeTest, ManyGoInPagesBothWays) {
  Give(here_, BumpPage::kMost + 5, 1);
  Give(there_, 2 * BumpPage::kMost + 5, 2);
  exchange_.Begin("there");
  Serve();
  EXPECT_EQ(here_.BumpsDigest(), there_.BumpsDigest());
}

TEST_F(BumpExchangeTest, OneExchangeAtATimeAndThenAPause) {
  exchange_.Begin("there");
  exchange_.Begin("there");
  EXPECT_EQ(links_.bumps.size(), 1u);
  exchange_.Begin("elsewhere");
  EXPECT_EQ(links_.bumps.size(), 2u);
  Serve();
  exchange_.Begin("there");
  EXPECT_TRUE(links_.bumps.empty());
  clock_.Advance(milliseconds(500));
  exchange_.Begin("there");
  EXPECT_EQ(links_.bumps.size(), 1u);
  EXPECT_EQ(exchange_.exchanges(), 3u);
}

TEST_F(BumpExchangeTest, ItRemembersWhatAnExchangeThatEndedWasFor) {
  exchange_.Begin("there", 7);
  EXPECT_FALSE(exchange_.Settled("there", 7));
  Serve();
  EXPECT_TRUE(exchange_.Settled("there", 7));
  EXPECT_FALSE(exchange_.Settled("there", 8));
  EXPECT_FALSE(exchange_.Settled("elsewhere", 7));
  clock_.Advance(milliseconds(500));
  exchange_.Begin("there", 8);
  links_.TakeBumps().done(Errorf(StatusCode::kUnavailable, "gone"));
  EXPECT_FALSE(exchange_.Settled("there", 8));
}

TEST_F(BumpExchangeTest, WhatIsKnownOfAMemberGoesWithIt) {
  exchange_.Begin("made up");
  EXPECT_TRUE(links_.bumps.empty());
  EXPECT_EQ(exchange_.known(), 2u);
  exchange_.Begin("there", 7);
  Serve();
  EXPECT_TRUE(exchange_.Settled("there", 7));
  exchange_.Begin("elsewhere", 7);
  exchange_.SetMembers({});
  EXPECT_EQ(exchange_.known(), 0u);
  Serve();  // The call to a member that left ends.
  EXPECT_EQ(exchange_.known(), 0u);
  exchange_.SetMembers({"there", "elsewhere"});
  EXPECT_FALSE(exchange_.Settled("there", 7));
  EXPECT_FALSE(exchange_.Settled("elsewhere", 7));
  // An exchange from before the member left does not end a later one.
  exchange_.Begin("there", 8);
  auto before = links_.TakeBumps();
  exchange_.SetMembers({});
  exchange_.SetMembers({"there"});
  exchange_.Begin("there", 9);
  before.done(Errorf(StatusCode::kUnavailable, "gone"));
  clock_.Advance(milliseconds(500));
  exchange_.Begin("there", 9);
  EXPECT_EQ(links_.bumps.size(), 1u);
}

TEST_F(BumpExchangeTest, AMemberThatDoesNotAnswerIsAskedAgain) {
  exchange_.Begin("there");
  links_.TakeBumps().done(Errorf(StatusCode::kUnavailable, "gone"));
  EXPECT_FALSE(exchange_.done_once());
  clock_.Advance(milliseconds(500));
  exchange_.Begin("there");
  links_.bumps.clear();  // The links end.
  clock_.Advance(milliseconds(500));
  exchange_.Begin("there");
  EXPECT_EQ(links_.bumps.size(), 1u);
}

TEST_F(BumpExchangeTest, AMemberThatLeadsInCirclesIsLeftAlone) {
  exchange_.Begin("there");
  links_.TakeBumps().done(BumpPage{.bumps = {}, .next = 7});
  executor_.RunAll();
  ASSERT_EQ(links_.bumps.size(), 1u);
  links_.TakeBumps().done(BumpPage{.bumps = {}, .next = 7});
  executor_.RunAll();
  EXPECT_TRUE(links_.bumps.empty());
  EXPECT_FALSE(exchange_.done_once());
}

}  // namespace
}  // namespace cairn::cache
