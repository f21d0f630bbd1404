#include "services/cache/serve/events/event_stream.h"

#include "tests/unit/cache/serve/events/opaque_blocks.h"

namespace cairn::cache {
namespace {

using Cause = EventStream::Cause;
using testing::TestKey;

class EventStreamTest : public OpaqueBlocksTest {
 protected:
  void Follow(EventStream::Options options = {}) {
    options.names = {.node = "n"};
    stream_ = std::make_unique<EventStream>(
        options,
        EventStream::Dependencies{
            .engine = engine_.get(), .clock = &clock_, .unix_time = [] { return 5.0; }},
        [this](const EventBatch& batch) {
          EXPECT_LE(batch.bytes->size(), EventStream::kBatchBytes + 1024);
          reader_.Take(batch.number, *batch.topic, *batch.bytes);
          last_ = batch;
        });
  }
  void Drain() {
    for (int i = 0; stream_->Step(); ++i) ASSERT_LT(i, 100'000);
  }
  uint64_t Begun(Cause cause) const {
    return stream_->numbers().beginnings[static_cast<size_t>(cause)];
  }
  void TearDown() override {
    stream_.reset();
    OpaqueBlocksTest::TearDown();
  }

  EventReader reader_;
  EventBatch last_;
  std::unique_ptr<EventStream> stream_;
};

TEST_F(EventStreamTest, BeginsWithNothingAndThenAllThatIsHere) {
  StartWithoutDevice();
  StoreAll(ns_, 1, 20);
  Flush();
  Follow();
  Drain();
  EXPECT_EQ(reader_.known(), Held());
  EXPECT_EQ(reader_.known().size(), 40u);  // In memory and on disk.
  EXPECT_EQ(reader_.cleared(), 1);
  EXPECT_EQ(Begun(Cause::kStart), 1u);
  const auto numbers = stream_->numbers();
  EXPECT_EQ(numbers.stored, 40u);
  EXPECT_EQ(numbers.namespaces, 1u);
  EXPECT_EQ(numbers.batches, reader_.next());
}

TEST_F(EventStreamTest, ANodeWithoutBlocksSaysThat) {
  StartWithoutDevice();
  ASSERT_OK(engine_->DropNamespace(ns_));
  Follow();
  Drain();
  EXPECT_EQ(reader_.cleared(), 1);
  // Of no model, but with the node's name, by which a router forgets what an earlier process told.
  EXPECT_EQ(*last_.topic, "kv@n@");
}

TEST_F(EventStreamTest, KnowsAtEachStepWhichTierHasWhat) {
  StartWithoutDevice({.host_bytes = 1 << 20, .disk_bytes = 2 << 20});
  Follow();
  std::mt19937_64 random(3);
  uint64_t next = 1;
  for (int round = 0; round < 200; ++round) {
    for (uint64_t i = random() % 12; i > 0; --i) {
      clock_.Advance(std::chrono::milliseconds(1));
      const uint64_t n = random() % 4 == 0 ? 1 + random() % next : next++;
      const Status status = StoreIn(ns_, n);
      ASSERT_TRUE(status.ok() || status.code() == StatusCode::kAlreadyExists) << ToString(status);
    }
    if (random() % 2 == 0) Flush();
    Drain();
    ASSERT_EQ(reader_.known(), Held()) << round;
  }
  EXPECT_GT(stream_->numbers().removed, 100u);
  EXPECT_EQ(reader_.cleared(), 1);
}

// Some routers count how often a block was stored: EventReader does.
TEST_F(EventStreamTest, WhatIsStoredWhileItBeginsIsToldOnce) {
  StartWithoutDevice({.host_bytes = 64 << 20, .disk = false});
  StoreAll(ns_, 1, 6000);
  std::mt19937_64 random(4);
  for (int round = 0; round < 5; ++round) {
    reader_ = EventReader();
    Follow();
    uint64_t next = 10'000 * static_cast<uint64_t>(round + 1);
    for (int i = 0; i < 40; ++i) {
      StoreAll(ns_, next, next + 9);
      next += 10;
      if (!stream_->Step()) break;
    }
    Drain();
    ASSERT_EQ(reader_.known(), Held());
    // And what comes later is one event again.
    StoreAll(ns_, next, next + 50);
    Drain();
    EXPECT_EQ(reader_.known(), Held());
    const auto batch = router::DecodeBatch(*last_.bytes);
    ASSERT_OK(batch);
    EXPECT_EQ(batch->events.size(), 1u);
  }
}

TEST_F(EventStreamTest, BeginsAgainIfItIsReadTooSlowly) {
  StartWithoutDevice({.disk = false, .engine = {.watch_queue_capacity = 32}});
  Follow();
  Drain();
  StoreAll(ns_, 1, 100);
  Drain();
  EXPECT_EQ(Begun(Cause::kLagged), 0u);  // Not at once: it could not keep up again.
  clock_.Advance(EventStream::kPause);
  Drain();
  EXPECT_EQ(Begun(Cause::kLagged), 1u);
  EXPECT_EQ(reader_.cleared(), 2);
  EXPECT_EQ(reader_.known(), Held());
  EXPECT_EQ(reader_.known().size(), 100u);
}

TEST_F(EventStreamTest, BlocksOfADroppedNamespaceAreForgotten) {
  StartWithoutDevice({.disk = false});
  const Fingerprint other = OpenAlso(Spec("other"));
  const Fingerprint silent = OpenAlso(Spec("silent"));
  StoreAll(ns_, 1, 5);
  StoreAll(other, 1, 7);
  Follow();
  Drain();
  EXPECT_EQ(reader_.known().size(), 12u);
  EXPECT_EQ(reader_.cleared(), 3);  // In each topic.
  clock_.Advance(EventStream::kPause);
  // Nobody knows blocks of it.
  ASSERT_OK(engine_->DropNamespace(silent));
  Drain();
  EXPECT_EQ(Begun(Cause::kDropped), 0u);
  ASSERT_OK(engine_->DropNamespace(other));
  Drain();
  EXPECT_EQ(Begun(Cause::kDropped), 0u);  // Noticed now.
  Drain();
  EXPECT_EQ(Begun(Cause::kDropped), 1u);
  EXPECT_EQ(reader_.known(), Held());
  EXPECT_EQ(reader_.known().size(), 5u);
  EXPECT_EQ(reader_.cleared(), 5);  // In its own, and in that of the namespace which stays.
  // A new epoch hides all blocks, too.
  clock_.Advance(EventStream::kPause);
  ASSERT_OK(engine_->BumpEpoch(ns_));
  Drain();
  Drain();
  EXPECT_TRUE(reader_.known().empty());
}

TEST_F(EventStreamTest, AReplayGivesWhatIsKept) {
  StartWithoutDevice({.disk = false});
  Follow();
  for (uint64_t n = 1; n <= 20; ++n) {
    StoreAll(ns_, n, n);
    Drain();
  }
  EventReader late;
  const auto take = [&](const EventBatch& batch) {
    late.Take(batch.number, *batch.topic, *batch.bytes);
  };
  stream_->Replay(0, take);
  EXPECT_EQ(late.known(), reader_.known());
  EXPECT_EQ(late.next(), reader_.next());
  // From there on nothing is new, and beyond the end there is nothing.
  for (const uint64_t from : {reader_.next(), uint64_t{1'000'000}, UINT64_MAX}) {
    stream_->Replay(from, [](const EventBatch&) { FAIL(); });
  }
  EventReader middle;
  middle.Expect(reader_.next() - 3);
  stream_->Replay(reader_.next() - 3, [&](const EventBatch& batch) {
    middle.Take(batch.number, *batch.topic, *batch.bytes);
  });
  EXPECT_EQ(middle.known().size(), 3u);
  EXPECT_EQ(stream_->numbers().replays, 5u);
  EXPECT_EQ(stream_->numbers().incomplete_replays, 0u);
  clock_.Advance(10 * EventStream::kPauseAsked);
  Drain();
  EXPECT_EQ(Begun(Cause::kAsked), 0u);
}

TEST_F(EventStreamTest, BeginsAgainForAReaderThatCameTooLate) {
  StartWithoutDevice({.disk = false});
  EventStream::Options options;
  options.kept_bytes = 10'000;
  Follow(options);
  for (uint64_t n = 1; n <= 100; ++n) {
    StoreAll(ns_, n, n);
    Drain();
  }
  EXPECT_LE(stream_->numbers().kept_bytes, 10'000u);
  const uint64_t kept = stream_->numbers().kept_batches;
  EXPECT_LT(kept, 50u);
  EventReader late;
  late.Expect(reader_.next() - kept);
  stream_->Replay(
      0, [&](const EventBatch& batch) { late.Take(batch.number, *batch.topic, *batch.bytes); });
  EXPECT_EQ(late.next(), reader_.next());
  EXPECT_LT(late.known().size(), 100u);
  EXPECT_EQ(stream_->numbers().incomplete_replays, 1u);
  // The others forget what they know, so not as often as somebody asks.
  stream_->Replay(0, [](const EventBatch&) {});
  clock_.Advance(EventStream::kPauseAsked / 2);
  Drain();
  EXPECT_EQ(Begun(Cause::kAsked), 0u);
  clock_.Advance(EventStream::kPauseAsked);
  Drain();
  EXPECT_EQ(Begun(Cause::kAsked), 1u);
  EXPECT_EQ(reader_.known(), Held());
  EXPECT_EQ(reader_.known().size(), 100u);
  // Its beginning is kept, so who asks now needs no other one.
  stream_->Replay(0, [](const EventBatch&) {});
  clock_.Advance(2 * EventStream::kPauseAsked);
  Drain();
  EXPECT_EQ(Begun(Cause::kAsked), 1u);
}

TEST_F(EventStreamTest, OfOtherTenantsAndOtherKeysNothingIsTold) {
  StartWithoutDevice({.disk = false});
  const Fingerprint other = OpenAlso(Spec("model", "other"));
  const Fingerprint chunks = OpenAlso(Spec("model", "default", "lmcache"));
  StoreAll(other, 1, 5);
  Follow();
  Drain();
  StoreAll(other, 6, 10);
  StoreAll(chunks, 1, 5);
  Drain();
  EXPECT_TRUE(reader_.known().empty());
  EXPECT_EQ(reader_.next(), 1u);
  StoreAll(ns_, 1, 5);
  Drain();
  EXPECT_EQ(reader_.known(), Held());
  EXPECT_EQ(reader_.known().size(), 5u);
  EXPECT_EQ(stream_->numbers().skipped_namespaces, 1u);
  EXPECT_EQ(stream_->numbers().namespaces, 1u);
  ASSERT_OK(engine_->DropTenant("other"));
  ASSERT_OK(engine_->DropNamespace(chunks));
  clock_.Advance(EventStream::kPause);
  Drain();
  Drain();
  EXPECT_EQ(Begun(Cause::kDropped), 0u);
}

TEST_F(EventStreamTest, BlocksOfPoolsHaveTheEnginesHashAndGroup) {
  spec_.layout.block_tokens = 32;
  spec_.layout.form =
      OpaqueLayout{.description = "pages",
                   .pools = {{"full", 32, 1, 4000, true}, {"window", 32, 1, 4000, false}}};
  StartWithoutDevice({.host_bytes = 1 << 20, .disk = false});
  Follow();
  const std::vector<uint64_t> lengths = {4000};
  for (uint64_t n = 1; n <= 600; ++n) {
    clock_.Advance(std::chrono::milliseconds(1));
    const auto pool = static_cast<uint16_t>(n % 2);
    const format::PartRect rect{pool, static_cast<uint16_t>(pool + 1), 0, 1};
    std::vector<std::byte> bytes(format::PartBytes(lengths));
    format::SealPart(bytes, format::Codec::kOpaque, rect, 32, lengths);
    ReservePartRequest part;
    part.key = PoolKey(TestKey(n / 2), pool);
    part.part = rect;
    part.bytes = bytes.size();
    auto ids = engine_->Reserve(session_, ns_, {&part, 1}, Duration(0));
    ASSERT_OK(ids);
    ASSERT_OK((*ids)[0]);
    ASSERT_OK(engine_->Write(session_, *(*ids)[0], 0, bytes));
    ASSERT_OK(CommitOne(*(*ids)[0]));
    Drain();
  }
  // Blocks of both pools have left.
  EXPECT_GT(stream_->numbers().removed, 100u);
  EXPECT_EQ(reader_.known(), Held());
  std::set<uint32_t> groups;
  for (const auto& block : reader_.known()) groups.insert(std::get<3>(block));
  EXPECT_EQ(groups, (std::set<uint32_t>{0, 1}));
}

}  // namespace
}  // namespace cairn::cache
