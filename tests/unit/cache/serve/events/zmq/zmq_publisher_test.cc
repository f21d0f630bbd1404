// The publisher over real sockets, with a real engine behind it.

#include "services/cache/serve/events/zmq/zmq_publisher.h"

#include <poll.h>

#include <functional>
#include <zmq.hpp>

#include "tests/support/etcd_cluster.h"
#include "tests/support/process.h"
#include "tests/unit/cache/serve/events/opaque_blocks.h"

namespace cairn::cache {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

using Frames = std::vector<std::string>;

std::string BytesOf(uint64_t number) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (56 - 8 * i));
  return bytes;
}
uint64_t NumberOf(const std::string& bytes) {
  EXPECT_EQ(bytes.size(), 8u);
  uint64_t number = 0;
  for (const char c : bytes) number = number << 8 | static_cast<uint8_t>(c);
  return number;
}

// Empty: none waits.
Frames Receive(zmq::socket_t& socket) {
  Frames frames;
  zmq::message_t frame;
  do {
    if (!socket.recv(frame, zmq::recv_flags::dontwait)) return frames;
    frames.push_back(frame.to_string());
  } while (frame.more());
  return frames;
}

void WaitFor(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (!done()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    poll(nullptr, 0, 2);  // Sockets of ZeroMQ have to be asked.
  }
}

// Follows a publisher as vLLM's documentation says: live batches, and a replay for a gap.
class Follower {
 public:
  Follower(const ZmqPublisher::Options& options, int most_waiting = 1000)
      : live_(context_, zmq::socket_type::sub), replay_(context_, zmq::socket_type::dealer) {
    for (zmq::socket_t* socket : {&live_, &replay_}) socket->set(zmq::sockopt::linger, 0);
    live_.set(zmq::sockopt::rcvhwm, most_waiting);
    live_.set(zmq::sockopt::subscribe, "kv@");
    live_.connect(options.endpoint);
    if (!options.replay_endpoint.empty()) replay_.connect(options.replay_endpoint);
  }

  // Takes what has come. False: nothing has.
  bool Update() {
    bool any = false;
    for (Frames frames = Receive(live_); !frames.empty(); frames = Receive(live_)) {
      any = true;
      EXPECT_EQ(frames.size(), 3u);
      const uint64_t number = NumberOf(frames[1]);
      if (number < reader_.next()) continue;  // A replay has brought it.
      if (number > reader_.next()) {
        gaps_ += joined_;
        Replay(reader_.next());
      }
      joined_ = true;
      if (number >= reader_.next()) reader_.Take(number, frames[0], frames[2]);
    }
    return any;
  }
  void Replay(uint64_t from) {
    Ask({"", BytesOf(from)});
    bool end = false;
    WaitFor([&] {
      for (Frames frames = Receive(replay_); !end && !frames.empty(); frames = Receive(replay_)) {
        EXPECT_EQ(frames.size(), 4u);
        EXPECT_EQ(frames[0], "");
        const uint64_t number = NumberOf(frames[2]);
        end = number == UINT64_MAX;
        if (end) {
          EXPECT_EQ(frames[1] + frames[3], "");
          break;
        }
        if (number > reader_.next()) reader_.Expect(number);  // Not all is kept.
        reader_.Take(number, frames[1], frames[3]);
      }
      return end;
    });
  }
  void Ask(const Frames& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      replay_.send(zmq::message_t(frames[i]),
                   i + 1 < frames.size() ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }

  const EventReader& reader() const { return reader_; }
  int gaps() const { return gaps_; }

 private:
  zmq::context_t context_;
  zmq::socket_t live_, replay_;
  EventReader reader_;
  bool joined_ = false;
  int gaps_ = 0;
};

class ZmqPublisherTest : public OpaqueBlocksTest {
 protected:
  ZmqPublisher::Options Defaults() const {
    ZmqPublisher::Options options;
    options.endpoint = "ipc://" + directory_.path() + "/events";
    options.replay_endpoint = "ipc://" + directory_.path() + "/replay";
    options.most_waiting = 1000;
    options.stream.names = {.node = "n"};
    return options;
  }
  void Publish(const ZmqPublisher::Options& options) {
    options_ = options;
    auto publisher = ZmqPublisher::Start(options, engine_.get(), &clock_);
    ASSERT_OK(publisher);
    publisher_ = *std::move(publisher);
  }
  // Until what is published comes here: ZeroMQ does not say when a subscription counts.
  void Join(Follower& follower) {
    WaitFor([&] {
      StoreAll(ns_, next_, next_);
      ++next_;
      return follower.Update();
    });
  }
  void WaitUntilItKnowsAll(Follower& follower) {
    const auto held = Held();
    WaitFor([&] {
      follower.Update();
      return follower.reader().known() == held;
    });
  }
  void TearDown() override {
    publisher_.reset();
    OpaqueBlocksTest::TearDown();
  }

  cairn::testing::TemporaryDirectory directory_;
  ZmqPublisher::Options options_;
  std::unique_ptr<ZmqPublisher> publisher_;
  uint64_t next_ = 1'000'000;
};

TEST_F(ZmqPublisherTest, AReaderKnowsWhatTheNodeHolds) {
  StartWithoutDevice({.host_bytes = 1 << 20, .disk_bytes = 2 << 20});
  Publish(Defaults());
  Follower follower(options_);
  Join(follower);
  for (uint64_t n = 1; n <= 1000; n += 50) {
    StoreAll(ns_, n, n + 49);
    Flush();
    WaitUntilItKnowsAll(follower);
  }
  WaitFor([&] { return publisher_->stats().readers == 1; });
  const auto stats = publisher_->stats();
  EXPECT_GT(stats.stream.removed, 100u);
  EXPECT_EQ(stats.dropped_batches, 0u);
}

TEST_F(ZmqPublisherTest, OverTcpToo) {
  StartWithoutDevice({.disk = false});
  auto options = Defaults();
  options.endpoint = fmt::format("tcp://127.0.0.1:{}", cairn::testing::FreePort());
  options.replay_endpoint = fmt::format("tcp://127.0.0.1:{}", cairn::testing::FreePort());
  Publish(options);
  StoreAll(ns_, 1, 100);
  Follower follower(options_);
  Join(follower);
  WaitUntilItKnowsAll(follower);
  // A reader that has gone is no reader any more.
  WaitFor([&] { return publisher_->stats().readers == 1; });
  {
    const Follower second(options_);
    WaitFor([&] { return publisher_->stats().readers == 2; });
  }
  WaitFor([&] { return publisher_->stats().readers == 1; });
}

TEST_F(ZmqPublisherTest, ALateReaderGetsAllByAReplay) {
  StartWithoutDevice({.disk = false});
  StoreAll(ns_, 1, 50);
  Publish(Defaults());
  StoreAll(ns_, 51, 300);
  WaitFor([&] { return publisher_->stats().stream.stored == 300; });
  Follower follower(options_);
  follower.Replay(0);
  EXPECT_EQ(follower.reader().known(), Held());
  EXPECT_EQ(follower.reader().cleared(), 1);
  // Without a break to what comes now.
  Join(follower);
  WaitUntilItKnowsAll(follower);
  EXPECT_EQ(follower.reader().cleared(), 1);
}

// Its queue has a bound, others lose nothing, and it finds out by the numbers.
TEST_F(ZmqPublisherTest, AReaderThatDoesNotReadLosesBatchesAlone) {
  StartWithoutDevice({.host_bytes = 1 << 20, .disk = false});
  const Fingerprint other = OpenAlso(Spec("other"));
  Publish(Defaults());
  Follower quick(options_), slow(options_, 1);
  Join(quick);
  Join(slow);
  // Two topics in turn: each block is a batch.
  uint64_t n = 1;
  WaitFor([&] {
    for (const uint64_t end = n + 200; n < end; ++n) {
      StoreAll(ns_, n, n);
      StoreAll(other, n, n);
    }
    WaitUntilItKnowsAll(quick);
    return publisher_->stats().dropped_batches > 0;
  });
  EXPECT_EQ(quick.gaps(), 0);
  EXPECT_EQ(slow.gaps(), 0);
  // The next batch that it gets tells it.
  WaitFor([&] {
    StoreAll(ns_, n, n);
    ++n;
    slow.Update();
    return slow.gaps() > 0;
  });
  WaitUntilItKnowsAll(slow);
  WaitUntilItKnowsAll(quick);
}

TEST_F(ZmqPublisherTest, NonsenseIsCountedAndHarmsNobody) {
  StartWithoutDevice({.disk = false});
  StoreAll(ns_, 1, 10);
  Publish(Defaults());
  Follower follower(options_);
  for (const Frames& frames : std::vector<Frames>{{""},
                                                  {"", "short"},
                                                  {"", "123456789"},
                                                  {"x", BytesOf(0)},
                                                  {"", BytesOf(0), ""},
                                                  {"", "", "", "", "", ""}}) {
    follower.Ask(frames);
  }
  WaitFor([&] { return publisher_->stats().bad_requests == 6; });
  follower.Replay(0);
  EXPECT_EQ(follower.reader().known(), Held());
  // Too long: its connection ends. Others are served.
  Follower rude(options_);
  rude.Ask({"", std::string(100'000, 'x')});
  Follower another(options_);
  another.Replay(0);
  EXPECT_EQ(another.reader().known(), Held());
  EXPECT_EQ(publisher_->stats().bad_requests, 6u);
}

TEST_F(ZmqPublisherTest, WhereSomebodyListensIsNamed) {
  StartWithoutDevice({.disk = false});
  Publish(Defaults());
  auto options = Defaults();
  const auto start = [&] { return ZmqPublisher::Start(options, engine_.get(), &clock_).status(); };
  EXPECT_THAT(start(), StatusIs(StatusCode::kFailedPrecondition,
                                HasSubstr("events.zmq: another process listens at")));
  options.endpoint += "2";
  EXPECT_THAT(start(), StatusIs(StatusCode::kFailedPrecondition,
                                HasSubstr("events.zmq_replay: another process listens at")));
  const auto port = cairn::testing::FreePort();
  options.replay_endpoint = fmt::format("tcp://127.0.0.1:{}", port);
  auto first = ZmqPublisher::Start(options, engine_.get(), &clock_);
  ASSERT_OK(first);
  options.endpoint = options.replay_endpoint;
  EXPECT_THAT(start(), StatusIs(StatusCode::kUnavailable,
                                HasSubstr(fmt::format("events.zmq: cannot listen at '{}': Address "
                                                      "already in use",
                                                      options.endpoint))));
  // The first ones still work.
  Follower follower(options_);
  Join(follower);
  WaitUntilItKnowsAll(follower);
}

// Such as llm-d's, at an endpoint for all publishers.
TEST_F(ZmqPublisherTest, ARouterThatListensGetsAllWheneverItComes) {
  StartWithoutDevice({.disk = false});
  StoreAll(ns_, 1, 50);
  auto options = Defaults();
  options.endpoint = fmt::format("tcp://127.0.0.1:{}", cairn::testing::FreePort());
  options.replay_endpoint = "";
  options.connect = true;
  Publish(options);
  for (int times = 1; times <= 2; ++times) {
    zmq::context_t context;
    zmq::socket_t router(context, zmq::socket_type::sub);
    router.set(zmq::sockopt::linger, 0);
    router.set(zmq::sockopt::subscribe, "kv@");
    router.bind(options.endpoint);
    EventReader reader;
    const auto held = Held();
    WaitFor([&] {
      clock_.Advance(std::chrono::milliseconds(20));
      for (Frames frames = Receive(router); !frames.empty(); frames = Receive(router)) {
        // The first batch that it gets may be any.
        if (reader.next() == 0) reader.Expect(NumberOf(frames[1]));
        reader.Take(NumberOf(frames[1]), frames[0], frames[2]);
      }
      return reader.cleared() > 0 && reader.known() == held;
    });
    router.close();
    WaitFor([&] { return publisher_->stats().readers == 0; });
    StoreAll(ns_, 100 * static_cast<uint64_t>(times), 100 * static_cast<uint64_t>(times) + 9);
  }
}

TEST_F(ZmqPublisherTest, ReplaysMayBeSwitchedOff) {
  StartWithoutDevice({.disk = false});
  auto options = Defaults();
  options.replay_endpoint = "";
  Publish(options);
  WaitFor([&] { return publisher_->stats().stream.batches == 1; });
  EXPECT_EQ(publisher_->stats().stream.replays, 0u);
}

}  // namespace
}  // namespace cairn::cache
