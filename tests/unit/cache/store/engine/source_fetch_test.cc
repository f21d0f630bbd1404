// A fetch of blocks that a source located: they stream as others do and become blocks of this node;
// each failure is a miss of one block.

#include <atomic>
#include <future>
#include <set>
#include <thread>

#include "tests/unit/cache/store/engine/source_fixture.h"

namespace cairn::cache::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class SourceFetchTest : public SourceTest {
 protected:
  // A match that covers what is here and what the source has.
  MatchResult MatchAll(uint64_t first, uint64_t last) {
    const auto asked = Ask(TestKeys(first, last));
    EXPECT_TRUE(asked->answered());
    EXPECT_EQ(asked->result().matched_blocks, last - first + 1);
    return asked->result();
  }
  uint64_t BlockBytes() const { return TestPart(spec_.layout, 1, Whole()).size(); }
};

TEST_F(SourceFetchTest, BlocksOfTheSourceBecomeBlocksOfThisNode) {
  StartWithSource();
  StoreChain(1, 2);
  GiveSource(3, 5);
  const Fetched fetched = TakeAll(MatchAll(1, 5), 1);
  EXPECT_TRUE(fetched.failures.empty());
  EXPECT_EQ(fetched.slices.size(), 5u * kLayers);
  for (const FetchedSlice& slice : fetched.slices) {
    EXPECT_EQ(slice.tier.has_value(), slice.block < 2) << slice.block;
  }
  EXPECT_EQ(source_.reads(), 3u);
  EXPECT_EQ(ServeAndVerify(1, 5), 5u);
  EXPECT_EQ(source_.reads(), 3u);
  EXPECT_EQ(source_.locates(), 1u);
  Flush();
  CrashAndRestart();
  EXPECT_EQ(ServeAndVerify(1, 5), 5u);
}

TEST_F(SourceFetchTest, AWindowOfTheSourceIsSentLayerByLayer) {
  StartWithSource();
  GiveSource(1, 3);
  const Fetched fetched = TakeAll(MatchAll(1, 3), 1);
  std::vector<std::pair<uint32_t, uint32_t>> expected;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (uint32_t block = 0; block < 3; ++block) expected.emplace_back(layer, block);
  }
  EXPECT_EQ(fetched.order, expected);
}

TEST_F(SourceFetchTest, BlocksOfSeveralPartsComeWhole) {
  StartWithSource();
  const format::PartRect whole = Whole();
  format::PartRect left = whole, right = whole;
  left.head_end = right.head_begin = 1;
  GiveSource(1, {left, right});
  EXPECT_EQ(TakeAll(MatchAll(1, 1), 1).slices.size(), 2u * kLayers);
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
}

TEST_F(SourceFetchTest, AReaderWaitsWithoutAThread) {
  StartWithSource();
  GiveSource(1, 2);
  const MatchResult match = MatchAll(1, 2);
  source_.DelayAnswers(milliseconds(20));
  const auto stream = Begin(match);
  Fetched fetched;
  EXPECT_TRUE(TakeWhatIsThere(*stream, 1, &fetched));
  EXPECT_TRUE(fetched.slices.empty());
  Pass(milliseconds(20));
  EXPECT_FALSE(TakeWhatIsThere(*stream, 1, &fetched));
  EXPECT_EQ(fetched.slices.size(), 2u * kLayers);
}

TEST_F(SourceFetchTest, OneReadServesAllWhoWait) {
  StartWithSource();
  GiveSource(1, 2);
  source_.DelayAnswers(milliseconds(3));
  const auto asked = Ask(TestKeys(1, 2));
  Pass(milliseconds(3));
  const auto one = Begin(asked->result());
  const auto other = Begin(asked->result());
  Fetched first, second;
  EXPECT_TRUE(TakeWhatIsThere(*one, 1, &first));
  EXPECT_TRUE(TakeWhatIsThere(*other, 1, &second));
  EXPECT_EQ(source_.waiting(), 2u);
  Pass(milliseconds(3));
  EXPECT_FALSE(TakeWhatIsThere(*one, 1, &first));
  EXPECT_FALSE(TakeWhatIsThere(*other, 1, &second));
  EXPECT_EQ(first.slices.size(), 2u * kLayers);
  EXPECT_EQ(second.slices.size(), 2u * kLayers);
  EXPECT_EQ(source_.reads(), 2u);
}

TEST_F(SourceFetchTest, WhatCameInMeanwhileIsNotReadAgain) {
  StartWithSource();
  GiveSource(1, 2);
  const MatchResult match = MatchAll(1, 2);
  StoreChain(1, 2);
  EXPECT_EQ(TakeAll(match, 1).slices.size(), 2u * kLayers);
  EXPECT_EQ(source_.reads(), 0u);
}

TEST_F(SourceFetchTest, ABlockThatTheSourceNoLongerHasIsOneMiss) {
  StartWithSource();
  GiveSource(1, 3);
  const MatchResult match = MatchAll(1, 3);
  source_.Remove(ns_, TestKey(2));
  const Fetched fetched = TakeAll(match, 1);
  EXPECT_EQ(fetched.failures, (std::map<uint32_t, MissReason>{{1, MissReason::kAbsent}}));
  EXPECT_EQ(fetched.slices.size(), 2u * kLayers);
  EXPECT_EQ(BlocksInHost(3, 3), 1u);
}

TEST_F(SourceFetchTest, WrongBytesAreAMissAndLeaveNothing) {
  StartWithSource();
  GiveSource(1, 1);
  const uint64_t used = host_->GetStats().used_bytes;
  for (const bool length : {false, true}) {
    const MatchResult match = MatchAll(1, 1);
    if (length) {
      source_.MisstateLengths(1);
    } else {
      source_.FlipBytes(1);
    }
    const Fetched fetched = TakeAll(match, 1);
    EXPECT_EQ(fetched.failures, (std::map<uint32_t, MissReason>{{0, MissReason::kCorrupt}}));
    EXPECT_TRUE(fetched.slices.empty());
    EXPECT_EQ(BlocksInHost(1, 1), 0u);
    EXPECT_EQ(host_->GetStats().used_bytes, used);
  }
  EXPECT_EQ(engine_->GetStats().corrupt_blocks, 2u);
  EXPECT_EQ(TakeAll(MatchAll(1, 1), 1).slices.size(), kLayers);
}

TEST_F(SourceFetchTest, AFailingSourceIsAMiss) {
  StartWithSource();
  GiveSource(1, 2);
  const MatchResult match = MatchAll(1, 2);
  source_.FailReads(1, Errorf(StatusCode::kUnavailable, "source"));
  EXPECT_EQ(TakeAll(match, 1).failures, (std::map<uint32_t, MissReason>{{0, MissReason::kAbsent}}));
  EXPECT_EQ(TakeAll(match, 1).slices.size(), 2u * kLayers);
}

TEST_F(SourceFetchTest, ASourceThatGoesAwayIsAMiss) {
  StartWithSource();
  GiveSource(1, 2);
  const MatchResult match = MatchAll(1, 2);
  const uint64_t used = host_->GetStats().used_bytes;
  source_.HoldAnswers();
  const auto stream = Begin(match);
  Fetched fetched;
  EXPECT_TRUE(TakeWhatIsThere(*stream, 1, &fetched));
  source_.DropAnswers();
  EXPECT_FALSE(TakeWhatIsThere(*stream, 1, &fetched));
  EXPECT_EQ(fetched.failures,
            (std::map<uint32_t, MissReason>{{0, MissReason::kAbsent}, {1, MissReason::kAbsent}}));
  EXPECT_EQ(host_->GetStats().used_bytes, used);
}

TEST_F(SourceFetchTest, ALateSourceIsWaitedForOnceAndItsBytesAreDropped) {
  StartWithSource();
  // More than a window.
  GiveSource(1, 1000);
  const MatchResult match = MatchAll(1, 1000);
  const uint64_t used = host_->GetStats().used_bytes;
  source_.HoldAnswers();
  const auto stream = Begin(match);
  Fetched fetched;
  EXPECT_TRUE(TakeWhatIsThere(*stream, 1, &fetched));
  const size_t reads = source_.reads();
  EXPECT_LT(reads, 1000u);
  Pass(options_.engine.source_read_timeout - milliseconds(1));
  EXPECT_TRUE(TakeWhatIsThere(*stream, 1, &fetched));
  EXPECT_TRUE(fetched.failures.empty());
  Pass(milliseconds(1));
  EXPECT_FALSE(TakeWhatIsThere(*stream, 1, &fetched));
  EXPECT_EQ(fetched.failures.size(), 1000u);
  for (const auto& [block, reason] : fetched.failures) EXPECT_EQ(reason, MissReason::kDeadline);
  EXPECT_EQ(source_.reads(), reads);
  source_.ReleaseAnswers();
  EXPECT_EQ(BlocksInHost(1, 1), 0u);
  EXPECT_EQ(host_->GetStats().used_bytes, used);
  EXPECT_EQ(Misses(MissReason::kDeadline), 1000u);
}

TEST_F(SourceFetchTest, AReadThatNobodyWaitsForIsNotStarted) {
  ManualExecutor manual;
  executor_ = &manual;
  StartWithSource();
  GiveSource(1, 2);
  const MatchResult match = MatchAll(1, 2);
  {
    const auto stream = Begin(match);
    Fetched fetched;
    EXPECT_TRUE(TakeWhatIsThere(*stream, 1, &fetched));
  }
  manual.RunAll();
  EXPECT_EQ(source_.reads(), 0u);
  EXPECT_EQ(timers_.pending(), 0u);
  TearDown();
  engine_ = nullptr;
}

TEST_F(SourceFetchTest, WhatFindsNoRoomInHostIsServedFromABuffer) {
  Options options;
  options.host_bytes = 128 << 10;
  options.device_bytes = 0;
  StartWithSource(options);
  StoreChain(101, 106);
  const MatchResult pinned = Match(TestKeys(101, 106));
  ASSERT_EQ(pinned.matched_blocks, 6u);
  GiveSource(1, 40);
  const Fetched fetched = TakeAll(MatchAll(1, 40), 1);
  EXPECT_TRUE(fetched.failures.empty());
  EXPECT_EQ(fetched.slices.size(), 40u * kLayers);
  EXPECT_EQ(BlocksInHost(2, 2), 0u);
}

TEST_F(SourceFetchTest, WithoutABufferItWaitsUntilAReaderHasDone) {
  Options options;
  options.host_bytes = 128 << 10;
  options.device_bytes = 0;
  options.engine.max_transfer_bytes = 2 * BlockBytes();
  StartWithSource(options);
  StoreChain(101, 106);
  const MatchResult pinned = Match(TestKeys(101, 106));
  ASSERT_EQ(pinned.matched_blocks, 6u);
  GiveSource(1, 8);
  const MatchResult match = MatchAll(1, 8);
  keep_holds_ = true;
  const auto stream = Begin(match);
  Fetched fetched;
  std::set<uint32_t> served;
  // The reader holds every slice that it has: the fetch stops, asks the source no more than it has
  // to, and goes on when the slices go.
  for (int round = 0; round < 20 && TakeWhatIsThere(*stream, 1, &fetched); ++round) {
    const size_t reads = source_.reads();
    ASSERT_FALSE(fetched.slices.empty());
    EXPECT_TRUE(TakeWhatIsThere(*stream, 1, &fetched));
    EXPECT_EQ(source_.reads(), reads);
    for (const FetchedSlice& slice : fetched.slices) served.insert(slice.block);
    fetched.slices.clear();
  }
  for (const FetchedSlice& slice : fetched.slices) served.insert(slice.block);
  EXPECT_TRUE(fetched.failures.empty());
  EXPECT_EQ(served.size(), 8u);
}

TEST_F(SourceFetchTest, OfAWriterAndASourceTheFirstWins) {
  StartWithSource();
  for (const uint64_t n : {1, 2, 3}) GiveSource(n, n);
  const MatchResult match = MatchAll(1, 3);
  // Block 1 is not yet the writer's, block 2 has a part of one that stopped, and block 3 is stored
  // while the source reads it.
  const auto reservation = Reserve(Part(1, std::nullopt));
  ASSERT_OK(reservation);
  ASSERT_OK(Store(2, 1, {{0, 1, 0, kHeads}}));
  source_.HoldAnswers();
  const auto stream = Begin(match);
  Fetched fetched;
  EXPECT_TRUE(TakeWhatIsThere(*stream, 1, &fetched));
  ASSERT_OK(Store(3, 2));
  source_.ReleaseAnswers();
  EXPECT_FALSE(TakeWhatIsThere(*stream, 1, &fetched));
  EXPECT_TRUE(fetched.failures.empty());
  EXPECT_EQ(fetched.slices.size(), 3u * kLayers);
  fetched.slices.clear();
  EXPECT_EQ(BlocksInHost(1, 3), 3u);
  ASSERT_OK(engine_->Write(session_, *reservation, 0, TestPart(spec_.layout, 1, Whole())));
  EXPECT_THAT(CommitOne(*reservation), StatusIs(StatusCode::kAlreadyExists, ::testing::_));
  EXPECT_EQ(ServeAndVerify(1, 3), 3u);
  EXPECT_THAT(Reserve(Part(2, 1)), StatusIs(StatusCode::kAlreadyExists, ::testing::_));
}

TEST_F(SourceFetchTest, ALeaseThatEndsTurnsTheRestIntoFailures) {
  StartWithSource();
  GiveSource(1, 3);
  const MatchResult match = MatchAll(1, 3);
  source_.HoldAnswers();
  const auto stream = Begin(match);
  Fetched fetched;
  EXPECT_TRUE(TakeWhatIsThere(*stream, 1, &fetched));
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  EXPECT_FALSE(TakeWhatIsThere(*stream, 1, &fetched));
  EXPECT_EQ(fetched.failures.size(), 3u);
}

TEST_F(SourceFetchTest, ANamespaceThatIsDroppedMeanwhileTakesNothingIn) {
  StartWithSource();
  GiveSource(1, 2);
  const MatchResult match = MatchAll(1, 2);
  const uint64_t used = host_->GetStats().used_bytes;
  source_.HoldAnswers();
  const auto stream = Begin(match);
  Fetched fetched;
  EXPECT_TRUE(TakeWhatIsThere(*stream, 1, &fetched));
  ASSERT_OK(engine_->BumpEpoch(ns_));
  source_.ReleaseAnswers();
  EXPECT_FALSE(TakeWhatIsThere(*stream, 1, &fetched));
  EXPECT_EQ(fetched.failures.size(), 2u);
  EXPECT_EQ(BlocksInHost(1, 1), 0u);
  EXPECT_EQ(host_->GetStats().used_bytes, used);
}

TEST_F(SourceFetchTest, SlicesStayReadableWhenTheLeaseAndTheBlockGo) {
  StartWithSource();
  GiveSource(1, 2);
  keep_holds_ = true;
  const MatchResult match = MatchAll(1, 2);
  const Fetched fetched = TakeAll(match, 1);
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  ASSERT_OK(engine_->DropNamespace(ns_));
  for (const FetchedSlice& slice : fetched.slices) EXPECT_TRUE(IsSliceOf(1 + slice.block, slice));
}

// On threads and the steady clock, for TSan: readers, a source that answers late or never, and
// matches that are cut off by their deadlines.
// Long: what each of the threads does stands side by side.
TEST_F(SourceFetchTest, ThreadsOfTheSourceTheTimersAndTheReadersMeet) {
  ThreadPool pool({.name = "mover", .threads = 2});
  FakeBlockSource source(&SteadyClock::Get());
  Timers timers(&SteadyClock::Get());
  timers.Start();
  HostTierOptions host_options;
  host_options.capacity_bytes = 256 << 10;  // Less than all blocks.
  host_options.prefault = false;
  host_options.check_memory = false;
  auto host = *HostTier::Create(host_options);
  EngineOptions options;
  options.source_lookup_timeout = milliseconds(1);
  options.source_read_timeout = milliseconds(20);
  auto engine = *CacheEngine::Create(options, {.tiers = Tiers(host.get()),
                                               .clock = &SteadyClock::Get(),
                                               .executor = &pool,
                                               .node_id = "node",
                                               .node_epoch = 1,
                                               .source = &source,
                                               .timers = &timers});
  ns_ = engine->OpenNamespace(spec_, false)->fingerprint;
  for (uint64_t n = 1; n <= 30; ++n) {
    const auto bytes = TestPart(spec_.layout, n, Whole());
    source.Put(ns_, TestKey(n), Describe(n, std::nullopt, {bytes}, {Whole()}), {bytes});
  }
  source.DelayAnswers(std::chrono::microseconds(300));
  std::atomic<bool> stop{false};
  std::thread giver([&] {
    // Rarely enough that most answers, which take 300 us, arrive.
    TimePoint drop = SteadyClock::Get().Now();
    while (!stop.load()) {
      source.RunDue();
      if (const TimePoint now = SteadyClock::Get().Now(); now >= drop) {
        source.DropAnswers();
        drop = now + milliseconds(3);
      }
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> readers;
  std::atomic<uint64_t> served{0};
  for (uint64_t r = 0; r < 3; ++r) {
    readers.emplace_back([&, r] {
      const SessionId session = *engine->OpenSession("reader");
      for (uint64_t round = 0; round < 60; ++round) {
        const uint64_t first = 1 + (round * 7 + r * 11) % 20;
        const auto keys = TestKeys(first, first + 9);
        auto local =
            engine->Match({.session = session, .fingerprint = ns_, .keys = keys, .trace = {}});
        ASSERT_OK(local);
        MatchResult match = *local;
        if (const auto further = std::exchange(match.further, nullptr)) {
          const auto promise = std::make_shared<std::promise<MatchResult>>();
          auto future = promise->get_future();
          further->Find(TimePoint::max(),
                        [promise](Result<MatchResult> result) { promise->set_value(*result); });
          match = future.get();
        }
        if (!match.lease) continue;
        auto stream = engine->Fetch({.session = session, .lease = *match.lease, .trace = {}});
        ASSERT_OK(stream);
        for (;;) {
          auto item = (*stream)->Next(SteadyClock::Get().Now() + seconds(10));
          ASSERT_OK(item);
          if (!*item) break;
          if (const auto* slice = std::get_if<FetchedSlice>(&**item)) {
            ASSERT_TRUE(IsSliceOf(first + slice->block, *slice));
            ++served;
          }
        }
        stream->reset();
        ASSERT_OK(engine->Release(session, {&*match.lease, 1}));
      }
      engine->CloseSession(session);
    });
  }
  for (auto& reader : readers) reader.join();
  stop = true;
  giver.join();
  EXPECT_GT(served.load(), 0u);
  // In the order of a node's end: nothing is asked any more, the source lets go, the engine ends.
  pool.Stop();
  source.DropAnswers();
  engine.reset();
}

}  // namespace
}  // namespace cairn::cache::testing
