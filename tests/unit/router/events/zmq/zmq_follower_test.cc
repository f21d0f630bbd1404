#include "services/router/events/zmq/zmq_follower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <functional>

#include "common/status/matchers.h"
#include "tests/support/engine_batches.h"
#include "tests/support/fake_publisher.h"

namespace cairn::router {
namespace {

const EngineNamespace kSpace = MakeEngineNamespace(EngineKeys::kTokens, 4);
constexpr char kEngine[] = "http://engine:8000";

// Stores the prompt of four tokens that begins with this one.
std::string Batch(int begin) {
  BatchWriter writer(EventForm::kMaps, HashForm::kBytes);
  return writer.Stored({.hashes = {static_cast<uint64_t>(begin) + 1}, .tokens = Counting(begin, 4)})
      .Take();
}

class ZmqFollowerTest : public ::testing::Test {
 protected:
  // The engine answers in Wait, so how soon is a matter of this machine.
  void Follow(std::vector<EventSource> sources, Duration replay_timeout = std::chrono::seconds(5)) {
    follower_.reset();
    index_ = std::make_unique<PrefixIndex>(PrefixIndex::Options{});
    auto follower = ZmqFollower::Start({.sources = std::move(sources),
                                        .space = kSpace,
                                        .feed = {.replay_timeout = replay_timeout,
                                                 .replay_pause = std::chrono::milliseconds(300)}},
                                       index_.get());
    ASSERT_OK(follower);
    follower_ = *std::move(follower);
  }
  // Until the engine's batches come here.
  void Follow(FakePublisher& engine, bool with_replays = true) {
    Follow({{.worker = kEngine,
             .endpoint = engine.endpoint(),
             .replay = with_replays ? engine.replay_endpoint() : ""}});
    Wait(engine, [&] { return engine.IsFollowed() && Engine().connected; });
    // The batches that were there before have come.
    if (with_replays) Wait(engine, [&] { return engine.asked() > 0; });
  }
  void Wait(FakePublisher& engine, const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done()) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      engine.Serve();
      poll(nullptr, 0, 2);  // Sockets of ZeroMQ have to be asked.
    }
  }
  bool Holds(int begin, const std::string& engine = kEngine) {
    const std::vector<int32_t> tokens = {begin, begin + 1, begin + 2, begin + 3};
    const auto keys = BlockKeyChain(kSpace.fingerprint).Keys(tokens, 4);
    for (const Holder& holder : index_->Lookup(kSpace.fingerprint, keys).holders) {
      if (holder.id == engine) return true;
    }
    return false;
  }
  ZmqFollower::Engine Engine(size_t i = 0) const { return follower_->engines()[i]; }

  std::unique_ptr<PrefixIndex> index_;
  std::unique_ptr<ZmqFollower> follower_;
};

TEST_F(ZmqFollowerTest, PublishedBlocksAreInTheIndex) {
  FakePublisher engine({});
  Follow(engine);
  engine.Publish(Batch(100));
  engine.Publish(Batch(200));
  Wait(engine, [&] { return Holds(100) && Holds(200); });
  Wait(engine, [&] { return Engine().feed.live_batches == 2 && Engine().view.stored == 2; });
  EXPECT_EQ(Engine().feed.gaps, 0u);
  ASSERT_TRUE(Engine().silent.has_value());
  EXPECT_LT(*Engine().silent, std::chrono::hours(1));
}

TEST_F(ZmqFollowerTest, ALateFollowerGetsWhatTheEngineRemembers) {
  for (const bool topic : {true, false}) {
    FakePublisher engine({.topic_in_replays = topic});
    engine.Publish(Batch(100));
    engine.Publish(Batch(200));
    Follow(engine);
    Wait(engine, [&] { return Holds(100) && Holds(200); });
    engine.Publish(Batch(300));
    Wait(engine, [&] { return Holds(300); });
    Wait(engine, [&] { return Engine().feed.replayed_batches == 2; });
    EXPECT_EQ(Engine().feed.junk, 0u);
  }
}

TEST_F(ZmqFollowerTest, LostBatchesAreAskedForAgain) {
  for (const bool topic : {true, false}) {
    FakePublisher engine({.topic_in_replays = topic});
    Follow(engine);
    engine.Publish(Batch(100));
    engine.Lose(Batch(200));
    engine.Lose(Batch(300));
    engine.Publish(Batch(400));
    Wait(engine, [&] { return Holds(100) && Holds(200) && Holds(300) && Holds(400); });
    Wait(engine, [&] { return Engine().feed.gaps == 1; });
    EXPECT_EQ(Engine().feed.forgotten, 0u);
  }
}

TEST_F(ZmqFollowerTest, AReplayOfMoreThanSocketsHoldIsComplete) {
  FakePublisher engine({});
  // ZeroMQ's ROUTER drops what it has no room for: 1,000 messages and what is on its way.
  constexpr int kBatches = 9000;
  for (int i = 0; i < kBatches; ++i) engine.Lose(Batch(i * 4));
  engine.Publish(Batch(kBatches * 4));
  Follow(engine);
  Wait(engine, [&] { return Holds(0) && Holds(kBatches * 4); });
  for (int i = 0; i <= kBatches; ++i) ASSERT_TRUE(Holds(i * 4)) << i;
  EXPECT_EQ(Engine().feed.forgotten, 0u);
}

TEST_F(ZmqFollowerTest, WhatTheEngineDoesNotRememberMakesItForget) {
  FakePublisher engine({.remembers = 2});
  Follow(engine);
  engine.Publish(Batch(100));
  Wait(engine, [&] { return Holds(100); });
  for (const int begin : {200, 300, 400}) engine.Lose(Batch(begin));
  engine.Publish(Batch(500));
  Wait(engine, [&] { return Holds(400) && Holds(500); });
  EXPECT_FALSE(Holds(100));
  Wait(engine, [&] { return Engine().feed.forgotten == 1; });
}

TEST_F(ZmqFollowerTest, AnEngineThatAnswersNoReplayIsFollowedAllTheSame) {
  FakePublisher engine({});
  FakePublisher silent({});  // Its replays are not served.
  Follow({{.worker = kEngine, .endpoint = engine.endpoint(), .replay = silent.replay_endpoint()}},
         std::chrono::milliseconds(300));
  Wait(engine, [&] { return engine.IsFollowed() && Engine().feed.failed_replays > 0; });
  engine.Publish(Batch(100));
  Wait(engine, [&] { return Holds(100); });
  engine.Lose(Batch(200));
  engine.Publish(Batch(300));
  Wait(engine, [&] { return Holds(300); });
  EXPECT_FALSE(Holds(100));
}

TEST_F(ZmqFollowerTest, WithoutReplaysAGapForgets) {
  FakePublisher engine({});
  Follow(engine, false);
  engine.Publish(Batch(100));
  Wait(engine, [&] { return Holds(100); });
  engine.Lose(Batch(200));
  engine.Publish(Batch(300));
  Wait(engine, [&] { return Holds(300); });
  EXPECT_FALSE(Holds(100));
  EXPECT_EQ(engine.asked(), 0);
}

TEST_F(ZmqFollowerTest, ARestartedEngineHoldsOnlyWhatItSaysAnew) {
  auto engine = std::make_unique<FakePublisher>(FakePublisher::Options{});
  const FakePublisher::Options same = {.endpoint = engine->endpoint(),
                                       .replay_endpoint = engine->replay_endpoint()};
  Follow(*engine);
  engine->Publish(Batch(100));
  engine->Publish(Batch(200));
  Wait(*engine, [&] { return Holds(100) && Holds(200); });
  engine.reset();
  engine = std::make_unique<FakePublisher>(same);
  engine->Publish(Batch(300));
  Wait(*engine, [&] { return Holds(300); });
  EXPECT_FALSE(Holds(100));
  EXPECT_FALSE(Holds(200));
  Wait(*engine, [&] { return engine->IsFollowed(); });
  engine->Publish(Batch(400));
  Wait(*engine, [&] { return Holds(400); });
  Wait(*engine, [&] { return Engine().feed.restarts == 1; });
}

TEST_F(ZmqFollowerTest, JunkIsCountedAndNothingElse) {
  FakePublisher engine({});
  Follow(engine);
  engine.Publish(Batch(100));
  engine.PublishFrames({"alone"});
  engine.PublishFrames({"topic", "seven b", Batch(200)});
  engine.PublishFrames({"topic", std::string(8, '\xff'), Batch(200)});
  engine.PublishFrames({"1", "2", "3", "4", "5", "6"});
  engine.Publish(Batch(300));
  Wait(engine, [&] { return Holds(100) && Holds(300); });
  Wait(engine, [&] { return Engine().feed.junk == 4; });
  EXPECT_EQ(Engine().feed.forgotten, 0u);
  // A batch that cannot be read may have removed something.
  engine.Publish("no batch");
  Wait(engine, [&] { return Engine().feed.junk == 5; });
  EXPECT_FALSE(Holds(100));
  engine.Publish(Batch(400));
  Wait(engine, [&] { return Holds(400); });
}

TEST_F(ZmqFollowerTest, AnEngineMayComeLater) {
  FakePublisher::Options later;
  {
    FakePublisher engine({});
    later = {.endpoint = engine.endpoint(), .replay_endpoint = engine.replay_endpoint()};
  }
  Follow({{.worker = kEngine, .endpoint = later.endpoint, .replay = later.replay_endpoint}});
  EXPECT_FALSE(Engine().connected);
  EXPECT_EQ(Engine().silent, std::nullopt);
  FakePublisher engine(later);
  engine.Publish(Batch(100));
  Wait(engine, [&] { return Holds(100); });
  EXPECT_TRUE(Engine().connected);
}

TEST_F(ZmqFollowerTest, EachEngineHoldsItsOwn) {
  FakePublisher first({}), second({});
  Follow({{.worker = "http://a", .endpoint = first.endpoint()},
          {.worker = "http://b", .endpoint = second.endpoint()}});
  Wait(first, [&] { return first.IsFollowed() && second.IsFollowed(); });
  first.Publish(Batch(100));
  second.Publish(Batch(200));
  Wait(first, [&] { return Holds(100, "http://a") && Holds(200, "http://b"); });
  EXPECT_FALSE(Holds(100, "http://b"));
  EXPECT_FALSE(Holds(200, "http://a"));
}

TEST_F(ZmqFollowerTest, EnginesComeAndGo) {
  FakePublisher first({}), second({});
  const EventSource a = {.worker = "http://a", .endpoint = first.endpoint()};
  const EventSource b = {.worker = "http://b", .endpoint = second.endpoint()};
  Follow({a});
  Wait(first, [&] { return first.IsFollowed(); });
  first.Publish(Batch(100));
  Wait(first, [&] { return Holds(100, "http://a") && Engine().view.stored == 1; });
  EXPECT_FALSE(follower_->Follows("http://b"));
  follower_->SetSources({a, b});
  EXPECT_TRUE(follower_->Follows("http://b"));
  Wait(first, [&] { return second.IsFollowed(); });
  second.Publish(Batch(200));
  Wait(first, [&] { return Holds(200, "http://b"); });
  EXPECT_TRUE(Holds(100, "http://a"));  // Its sockets stayed.
  // One that has gone holds nothing, and what it had said still counts.
  follower_->SetSources({b});
  Wait(first, [&] { return !Holds(100, "http://a") && follower_->engines().size() == 1; });
  EXPECT_FALSE(follower_->Follows("http://a"));
  EXPECT_TRUE(Holds(200, "http://b"));
  EXPECT_EQ(Engine().worker, "http://b");
  EXPECT_EQ(follower_->past().view.stored, 1u);
  EXPECT_EQ(follower_->past().view.blocks, 0u);
  // It may come back, beside an endpoint that cannot be used.
  follower_->SetSources({{.worker = "http://c", .endpoint = "nothing"}, b, a});
  Wait(first, [&] { return first.IsFollowed() && follower_->engines().size() == 2; });
  first.Publish(Batch(300));
  Wait(first, [&] { return Holds(300, "http://a"); });
  EXPECT_FALSE(Holds(100, "http://a"));
}

TEST_F(ZmqFollowerTest, EndpointsThatZmqRefusesAreAnError) {
  PrefixIndex index({});
  EXPECT_THAT(
      ZmqFollower::Start({.sources = {{.worker = kEngine, .endpoint = "nothing"}}, .space = kSpace},
                         &index),
      cairn::testing::StatusIs(StatusCode::kUnavailable,
                               ::testing::HasSubstr("'nothing' cannot be followed")));
}

}  // namespace
}  // namespace cairn::router
