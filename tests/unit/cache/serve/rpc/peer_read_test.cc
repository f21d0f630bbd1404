// Reads of other members: streams, also to readers that take nothing, and blocks that are lent.

#include <gmock/gmock.h>

#include <atomic>
#include <future>

#include "cairn/v1/peer.grpc.pb.h"
#include "common/concurrency/timers.h"
#include "common/status/matchers.h"
#include "services/cache/cluster/peer/testing/fake_peers.h"
#include "services/cache/serve/rpc/grpc_peer_links.h"
#include "services/cache/serve/rpc/peer_service.h"
#include "services/cache/store/engine/for_peers.h"
#include "tests/unit/cache/serve/rpc/service_fixture.h"

namespace cairn::cache {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Has one block, which is larger than what gRPC keeps for a reader that takes nothing.
class LargeBlock final : public PeerEngine {
 public:
  static constexpr size_t kBytes = 64 << 20;

  Result<std::unique_ptr<StoredBlockRead>> ReadStored(const Fingerprint&,
                                                      const BlockKey&) override {
    class Read final : public StoredBlockRead {
     public:
      explicit Read(LargeBlock* owner) : owner_(*owner) {}
      Result<StoredBlock> Next(TimePoint) override {
        StoredBlock block;
        block.parts.push_back({{0, 1, 0, 1}, kBytes});
        block.bytes.emplace_back(*owner_.bytes_);
        block.hold = owner_.bytes_;
        return block;
      }
      std::optional<DeviceBlock> OnDevice() override {
        DeviceBlock block;
        block.block.parts.push_back({{0, 1, 0, 1}, kBytes});
        block.extents.push_back({.length = kBytes});
        block.hold = owner_.bytes_;
        return block;
      }

     private:
      LargeBlock& owner_;
    };
    return std::make_unique<Read>(this);
  }
  // Reads that hold the bytes.
  long readers() const { return bytes_.use_count() - 1; }

  uint64_t BumpsDigestOf(const Fingerprint&) const override { return 0; }
  uint64_t BumpsDigest() const override { return 0; }
  BumpPage Bumps(uint64_t, size_t) const override { return {}; }
  Result<size_t> TakeOverBumps(std::span<const Bump>) override { return size_t{0}; }

 private:
  const std::shared_ptr<std::vector<std::byte>> bytes_ =
      std::make_shared<std::vector<std::byte>>(kBytes);
};

// Lends every block at the same place, or none.
class FakeLender final : public BlockLender {
 public:
  void Lend(const std::string& member, DeviceBlock block, LendDone done) override {
    members.push_back(member);
    block.hold.reset();
    if (!refuses.ok()) return done(refuses);
    done(LentPlace{.memory = 3, .offset = 512, .bytes = LentOffsets(block.block).back()});
  }
  Status refuses;
  std::vector<std::string> members;
};

class PeerReadTest : public ServiceTest {
 protected:
  void SetUp() override {
    engine.peers = &block_;
    cluster_.Attach(&engine);
    rpc.options.patience = std::chrono::minutes(10);
    rpc.options.fetch_stall = std::chrono::minutes(10);
    ServiceTest::SetUp();
    peers_ = v1::Peer::NewStub(channel);
  }
  void AddMore() override {
    reads_ = AddPeerService(&calls, &rpc, &cluster_, {}, &pool, &places_, &lender_);
  }
  void TickMore() override { reads_->Tick(); }
  void TearDown() override {
    ServiceTest::TearDown();
    cluster_.Detach();
  }
  static Cluster::Options OptionsOf() {
    Cluster::Options options;
    options.self.caller = {.cluster = "test", .id = "self", .incarnation = 1};
    options.self.address = "self:1";
    return options;
  }

  // A read that takes its first frame only.
  struct Reader {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::PeerReadFrame>> stream;
    v1::PeerReadFrame first;
    grpc::Status End() {
      v1::PeerReadFrame frame;
      while (stream->Read(&frame)) {
      }
      return stream->Finish();
    }
  };
  std::unique_ptr<Reader> Read(const std::string& member, bool may_be_lent = false) {
    auto reader = std::make_unique<Reader>();
    v1::PeerReadRequest request;
    request.mutable_caller()->set_cluster("test");
    request.mutable_caller()->set_node_id(member);
    request.mutable_caller()->set_incarnation(1);
    request.set_fingerprint(std::string(32, 'f'));
    request.set_key(std::string(32, 'k'));
    request.set_may_be_lent(may_be_lent);
    reader->stream = peers_->Read(&reader->context, request);
    EXPECT_TRUE(reader->stream->Read(&reader->first));
    return reader;
  }
  bool WaitForReaders(const std::function<bool(long)>& wanted) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!wanted(block_.readers())) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }

  static bool NoReader(long readers) { return readers == 0; }

  LargeBlock block_;
  testing::FakePeers links_{&SteadyClock::Get()};
  Timers timers_{&SteadyClock::Get()};
  Cluster cluster_{
      OptionsOf(),
      {.links = &links_, .timers = &timers_, .executor = &pool, .clock = &SteadyClock::Get()}};
  FakeLender lender_;
  Gate places_{16};
  std::shared_ptr<PeerReads> reads_;
  std::unique_ptr<v1::Peer::Stub> peers_;
};

TEST_F(PeerReadTest, AReaderThatReadsGetsItAll) {
  rpc.options.fetch_stall = std::chrono::seconds(10);
  const auto reader = Read("a");
  EXPECT_TRUE(reader->first.has_block());
  EXPECT_TRUE(reader->End().ok());
  EXPECT_EQ(cluster_.host().sent_bytes(), LargeBlock::kBytes);
  EXPECT_TRUE(WaitForReaders(NoReader));
}

TEST_F(PeerReadTest, AReaderThatTakesNothingIsCutOff) {
  rpc.options.fetch_stall = milliseconds(50);
  const auto reader = Read("a");
  EXPECT_TRUE(WaitForReaders(NoReader)) << "its buffers are let go without the reader";
  EXPECT_EQ(places_.inside(), 0u);
  const grpc::Status end = reader->End();
  EXPECT_NE(end.error_code(), grpc::StatusCode::OK);
  EXPECT_THAT(registry.Scrape(), HasSubstr("cairn_rpc_rejected_total{reason=\"stalled\"} 1"));
}

TEST_F(PeerReadTest, OneThatHoldsUpAnotherIsCutOffSooner) {
  rpc.options.patience = milliseconds(50);
  const auto first = Read("a"), second = Read("b");
  EXPECT_EQ(block_.readers(), 2);
  const auto third = Read("c");
  EXPECT_TRUE(third->first.has_busy());
  EXPECT_TRUE(third->End().ok());
  // One place is enough, and both may be given.
  EXPECT_TRUE(WaitForReaders([](long readers) { return readers < 2; }));
  const auto again = Read("c");
  EXPECT_TRUE(again->first.has_block());
  for (const auto* const reader : {&first, &second, &again}) {
    (*reader)->context.TryCancel();
    (void)(*reader)->End();
  }
}

TEST_F(PeerReadTest, ABlockThatIsLentSendsNoBytes) {
  const auto reader = Read("a", /*may_be_lent=*/true);
  ASSERT_TRUE(reader->first.has_block());
  ASSERT_TRUE(reader->first.has_lent());
  EXPECT_EQ(reader->first.block().parts_size(), 1);
  EXPECT_EQ(reader->first.lent().memory(), 3u);
  EXPECT_EQ(reader->first.lent().offset(), 512u);
  EXPECT_EQ(reader->first.lent().bytes(), LargeBlock::kBytes);
  EXPECT_TRUE(reader->End().ok());
  EXPECT_THAT(lender_.members, ElementsAre("a"));
  EXPECT_EQ(cluster_.host().sent_bytes(), 0u);
  EXPECT_TRUE(WaitForReaders(NoReader));
  EXPECT_EQ(places_.inside(), 0u);
}

TEST_F(PeerReadTest, ABlockThatCannotBeLentIsStreamed) {
  lender_.refuses = Errorf(StatusCode::kResourceExhausted, "no room");
  const auto reader = Read("a", /*may_be_lent=*/true);
  EXPECT_TRUE(reader->first.has_block());
  EXPECT_FALSE(reader->first.has_lent());
  EXPECT_TRUE(reader->End().ok());
  EXPECT_THAT(lender_.members, ElementsAre("a"));
  EXPECT_EQ(cluster_.host().sent_bytes(), LargeBlock::kBytes);
  EXPECT_TRUE(WaitForReaders(NoReader));
}

TEST_F(PeerReadTest, NothingIsLentToAReaderThatDoesNotAskForIt) {
  const auto reader = Read("a");
  EXPECT_FALSE(reader->first.has_lent());
  EXPECT_TRUE(reader->End().ok());
  EXPECT_TRUE(lender_.members.empty());
}

// Where the links put a block. Says when its hashes would be compared.
class PlainSink final : public BlockSink {
 public:
  Result<std::vector<std::span<std::byte>>> Begin(const SourceBlock& block) override {
    bytes_.resize(block.parts.at(0).bytes);
    return std::vector<std::span<std::byte>>{bytes_};
  }
  Status Finish() override {
    finished = true;
    return OkStatus();
  }
  std::atomic<bool> finished{false};

 private:
  std::vector<std::byte> bytes_;
};

TEST_F(PeerReadTest, AnAnswerToAHelloDoesNotWaitForTheEndOfARead) {
  rpc.options.fetch_stall = std::chrono::minutes(10);
  const auto eventually = [](const auto& condition) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  };
  ManualExecutor later;
  PlainSink sink;
  std::atomic<bool> read{false}, greeted{false};
  GrpcPeerLinks links({.self = {.cluster = "test", .id = "reader", .incarnation = 1},
                       .files = {},
                       .executor = &later});
  links.SetAddresses({{"self", address}});
  const TimePoint deadline = SteadyClock::Get().Now() + std::chrono::minutes(5);
  links.Read("self", {}, {}, PeerBytes::kStreamed, {.deadline = deadline}, std::chrono::minutes(5),
             &sink, [&](const Status& status, const PeerReadAnswer& answer) {
               EXPECT_OK(status);
               EXPECT_FALSE(answer.silent);
               read = true;
             });
  ASSERT_TRUE(eventually([&] { return later.Pending() == 1; }));
  PeerHello hello;
  hello.caller = {.cluster = "test", .id = "reader", .incarnation = 1};
  hello.address = "reader:1";
  links.Hello(address, hello, deadline, [&](const Result<PeerHelloAnswer>& answer) {
    EXPECT_OK(answer);
    greeted = true;
  });
  EXPECT_TRUE(eventually([&] { return greeted.load(); }));
  EXPECT_FALSE(sink.finished) << "the thread of the links hashes nothing";
  EXPECT_FALSE(read);
  // Meanwhile silence is not the member's any more.
  links.Tick();
  EXPECT_EQ(later.RunAll(), 1u);
  EXPECT_TRUE(sink.finished && read);
  links.Stop();
}

TEST_F(PeerReadTest, WhatTheExecutorRefusesEndsAllTheSame) {
  class Full final : public Executor {
   public:
    Status Post(std::function<void()>) override {
      return Errorf(StatusCode::kResourceExhausted, "the queue is full");
    }
  };
  Full full;
  PlainSink sink;
  GrpcPeerLinks links({.self = {.cluster = "test", .id = "reader", .incarnation = 1},
                       .files = {},
                       .executor = &full});
  links.SetAddresses({{"self", address}});
  std::promise<Status> ended;
  links.Read("self", {}, {}, PeerBytes::kStreamed,
             {.deadline = SteadyClock::Get().Now() + std::chrono::minutes(5)},
             std::chrono::minutes(5), &sink,
             [&](const Status& status, const PeerReadAnswer&) { ended.set_value(status); });
  EXPECT_OK(ended.get_future().get());
  EXPECT_TRUE(sink.finished);
  links.Stop();
}

}  // namespace
}  // namespace cairn::cache
