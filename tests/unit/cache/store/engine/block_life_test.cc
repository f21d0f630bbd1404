// Blocks that live for a time after their last use.

#include "services/cache/store/engine/for_peers.h"
#include "services/cache/store/engine/in_place.h"
#include "tests/unit/cache/store/engine/engine_fixture.h"

namespace cairn::cache::testing {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::_;
using ::testing::HasSubstr;

constexpr Duration kLife = seconds(60);
// The room of a block of the fixture in the host tier.
constexpr uint64_t kHostRoom = HostRoom(kBlockRoom);

// The engine asks a function for the time of day: that of this clock.
const FakeClock* time_of_day = nullptr;

class BlockLifeTest : public EngineTest {
 protected:
  BlockLifeTest() {
    time_of_day = &clock_;
    options_.engine.unix_seconds = [] {
      return std::chrono::duration_cast<seconds>(time_of_day->Now().time_since_epoch()).count();
    };
  }
  // A node, and a namespace whose blocks live for kLife.
  void StartWithLife(Options options) {
    options.engine.unix_seconds = options_.engine.unix_seconds;
    StartWithoutDevice(options);
    Open(spec_, kLife, LifeChange::kAny);
  }
  void StartWithLife() { StartWithLife(options_); }
  void Open(const NamespaceSpec& spec, Duration life, LifeChange change = LifeChange::kLonger) {
    const auto opened = engine_->OpenNamespace(spec, false, life, change);
    ASSERT_OK(opened);
    ns_ = opened->fingerprint;
  }
  // Without a use.
  MatchResult Look(uint64_t first, uint64_t last) {
    return Match(TestKeys(first, last), /*lease=*/false);
  }
  Duration LifeOf(const Fingerprint& fingerprint) {
    for (const NamespaceInfo& info : engine_->ListNamespaces("")) {
      if (info.fingerprint == fingerprint) return info.block_life;
    }
    ADD_FAILURE() << "no such namespace";
    return Duration(-1);
  }
};

TEST_F(BlockLifeTest, WhatWasNotUsedForLongerIsAMissWithAReasonOfItsOwn) {
  StartWithLife();
  StoreChain(1, 4);
  clock_.Advance(kLife - seconds(1));
  EXPECT_EQ(Look(1, 4).matched_blocks, 4u);
  clock_.Advance(seconds(2));
  EXPECT_EQ(Look(1, 4).matched_blocks, 0u);
  EXPECT_EQ(Look(1, 4).miss_reason, MissReason::kExpired);
  EXPECT_FALSE(Match(TestKeys(1, 4)).lease);
  EXPECT_EQ(engine_->GetStats().misses[static_cast<size_t>(MissReason::kExpired)], 4u);
  const auto exists = engine_->Exists(ns_, TestKeys(1, 4));
  ASSERT_OK(exists);
  for (const auto& tier : *exists) EXPECT_FALSE(tier.has_value());
  std::optional<TierKind> found[1];
  ASSERT_OK(engine_->in_place()->ExistsInPlace(ns_, TestKeys(1, 1), found));
  EXPECT_FALSE(found[0].has_value());
}

TEST_F(BlockLifeTest, AUseBeginsALifeAnew) {
  StartWithLife();
  StoreChain(1, 4);
  clock_.Advance(seconds(40));
  EXPECT_EQ(ServeAndVerify(1, 2), 2u);
  clock_.Advance(seconds(40));
  EXPECT_EQ(Look(1, 4).matched_blocks, 2u);
  EXPECT_EQ(Look(1, 4).miss_reason, MissReason::kExpired);
  // A look is no use.
  clock_.Advance(seconds(21));
  EXPECT_EQ(Look(1, 4).matched_blocks, 0u);
}

TEST_F(BlockLifeTest, WhatIsOverCanBeStoredAgain) {
  StartWithLife();
  StoreChain(1, 4);
  EXPECT_THAT(Store(1, std::nullopt), StatusIs(StatusCode::kAlreadyExists, _));
  clock_.Advance(kLife + seconds(1));
  StoreChain(1, 4);
  EXPECT_EQ(ServeAndVerify(1, 4), 4u);
  EXPECT_EQ(engine_->GetStats().expired_blocks, 4u);
  EXPECT_EQ(engine_->GetStats().blocks, 4u);
}

TEST_F(BlockLifeTest, WhoHasALeaseReadsOnAndNobodyElseBegins) {
  StartWithLife();
  StoreChain(1, 4);
  const MatchResult match = Match(TestKeys(1, 4));
  ASSERT_TRUE(match.lease);
  clock_.Advance(kLife + seconds(1));
  EXPECT_EQ(Look(1, 4).matched_blocks, 0u);
  // Its bytes are in use: the other copy is as good.
  EXPECT_THAT(Store(4, 3), StatusIs(StatusCode::kAlreadyExists, _));
  ASSERT_OK(engine_->Release(session_, {&*match.lease, 1}));
  ASSERT_OK(Store(4, 3));
}

TEST_F(BlockLifeTest, AFetchUnderALeaseGetsEverything) {
  StartWithLife();
  StoreChain(1, 4);
  const MatchResult match = Match(TestKeys(1, 4));
  ASSERT_TRUE(match.lease);
  ASSERT_OK(engine_->RenewLease(session_, *match.lease, seconds(120)));
  clock_.Advance(kLife + seconds(1));
  const Fetched fetched = Fetch(*match.lease);
  EXPECT_TRUE(fetched.failures.empty());
  EXPECT_EQ(fetched.slices.size(), 4u * kLayers);
}

TEST_F(BlockLifeTest, AHintDoesNotReviveIt) {
  StartWithLife();
  StoreChain(1, 4);
  clock_.Advance(kLife + seconds(1));
  const std::vector<BlockKey> keys = TestKeys(1, 4);
  const auto hinted = engine_->Prefetch(
      {.session = session_, .fingerprint = ns_, .keys = keys, .needed_in = seconds(5)});
  ASSERT_OK(hinted);
  EXPECT_EQ(hinted->absent_blocks, 4u);
  EXPECT_EQ(Look(1, 4).matched_blocks, 0u);
}

TEST_F(BlockLifeTest, WhatIsOverGoesBeforeOlderBlocksOfOthers) {
  Options options;
  options.disk = false;
  options.host_bytes = 16 * kHostRoom;
  StartWithLife(options);
  const Fingerprint lives = ns_;
  Open(TestSpec("for ever"), Duration(0));
  const Fingerprint stays = ns_;
  StoreAlone(101, 107);
  clock_.Advance(seconds(1));
  ns_ = lives;
  StoreAlone(1, 7);
  clock_.Advance(kLife + seconds(1));
  // Room for a few blocks: LRU would take it from those that live forever.
  ns_ = stays;
  StoreAlone(108, 112);
  for (uint64_t n = 101; n <= 112; ++n) EXPECT_EQ(Look(n, n).matched_blocks, 1u) << n;
  EXPECT_GE(engine_->GetStats().expired_blocks, 3u);
  ns_ = lives;
  EXPECT_EQ(Look(1, 1).miss_reason, MissReason::kExpired) << "the node remembers why";
}

// Ranks of namespaces are lower bounds: a block that was used since is not over.
TEST_F(BlockLifeTest, WhatWasUsedMeanwhileDoesNotGoFirst) {
  Options options;
  options.disk = false;
  options.host_bytes = 16 * kHostRoom;
  StartWithLife(options);
  const Fingerprint lives = ns_;
  StoreAlone(1, 1);
  clock_.Advance(seconds(50));
  EXPECT_EQ(ServeAndVerify(1, 1), 1u);
  clock_.Advance(seconds(1));
  Open(TestSpec("for ever"), Duration(0));
  StoreAlone(101, 110);
  clock_.Advance(seconds(20));
  StoreAlone(111, 120);
  EXPECT_EQ(engine_->GetStats().expired_blocks, 0u);
  ns_ = lives;
  EXPECT_EQ(Look(1, 1).miss_reason, MissReason::kEvicted) << "in the order of last use";
}

TEST_F(BlockLifeTest, OnDiskTooItGoesFirst) {
  Options options;
  options.host_bytes = 64 * kHostRoom;
  options.disk_bytes = 16 * kBlockRoom;
  StartWithLife(options);
  Open(TestSpec("for ever"), Duration(0));
  const Fingerprint stays = ns_;
  StoreAlone(101, 107);
  Open(spec_, kLife);
  StoreAlone(1, 7);
  Flush();
  ASSERT_EQ(BlocksIn(TierKind::kDisk), 14u);
  clock_.Advance(kLife + seconds(1));
  ns_ = stays;
  StoreAlone(108, 112);
  Flush();
  CrashAndRestart();
  ns_ = stays;
  for (uint64_t n = 101; n <= 112; ++n) EXPECT_EQ(Look(n, n).matched_blocks, 1u) << n;
}

TEST_F(BlockLifeTest, ARestartBringsBackTheLifeAndWhatIsLeftOfIt) {
  StartWithLife();
  StoreChain(1, 4);
  Flush();
  clock_.Advance(seconds(30));
  CrashAndRestart();  // The client that comes then says nothing.
  EXPECT_EQ(LifeOf(ns_), kLife);
  EXPECT_EQ(Look(1, 4).matched_blocks, 4u);
  clock_.Advance(seconds(32));
  EXPECT_EQ(Look(1, 4).miss_reason, MissReason::kExpired);
}

TEST_F(BlockLifeTest, ARestartLeavesBehindWhatIsOver) {
  StartWithLife();
  StoreChain(1, 4);
  Flush();
  clock_.Advance(kLife + seconds(2));
  CrashAndRestart();
  EXPECT_EQ(BlocksIn(TierKind::kDisk), 0u);
  EXPECT_EQ(Look(1, 4).miss_reason, MissReason::kExpired);
  EXPECT_EQ(engine_->GetStats().expired_blocks, 4u);
}

TEST_F(BlockLifeTest, AMemberGetsNothingThatIsOver) {
  StartWithLife();
  StoreChain(1, 1);
  ASSERT_OK(engine_->for_peers()->ReadStored(ns_, TestKey(1)));
  clock_.Advance(kLife + seconds(1));
  EXPECT_THAT(engine_->for_peers()->ReadStored(ns_, TestKey(1)),
              StatusIs(StatusCode::kNotFound, _));
}

// Whoever knows the name of a namespace may open it, without a session and without a role.
TEST_F(BlockLifeTest, AnOpeningHidesNobodysBlocks) {
  StartWithLife();
  StoreChain(1, 4);
  Flush();
  Open(spec_, seconds(1));
  EXPECT_EQ(LifeOf(ns_), kLife);
  clock_.Advance(seconds(11));
  EXPECT_EQ(Look(1, 4).matched_blocks, 4u);
  CrashAndRestart();
  EXPECT_EQ(LifeOf(ns_), kLife);
}

TEST_F(BlockLifeTest, TheLongestLifeThatAnOpeningAskedForCounts) {
  StartWithLife();
  StoreChain(1, 4);
  Flush();
  clock_.Advance(kLife + seconds(1));
  EXPECT_EQ(Look(1, 4).matched_blocks, 0u);
  Open(spec_, hours(1));
  EXPECT_EQ(Look(1, 4).matched_blocks, 4u) << "at once, for what is here";
  Open(spec_, Duration(0));
  EXPECT_EQ(LifeOf(ns_), hours(1));
  CrashAndRestart();
  EXPECT_EQ(LifeOf(ns_), hours(1)) << "its record was there already";
  ASSERT_OK(engine_->BumpEpoch(ns_));
  EXPECT_EQ(LifeOf(ns_), hours(1));
}

TEST_F(BlockLifeTest, WhatLivesForEverIsNotShortened) {
  StartWithoutDevice(options_);
  StoreChain(1, 4);
  Open(spec_, kLife);
  EXPECT_EQ(LifeOf(ns_), Duration(0));
  clock_.Advance(kLife + seconds(1));
  EXPECT_EQ(Look(1, 4).matched_blocks, 4u);
}

TEST_F(BlockLifeTest, AnAdministratorMayShortenIt) {
  StartWithLife();
  StoreChain(1, 4);
  Flush();
  Open(spec_, seconds(10), LifeChange::kAny);
  EXPECT_EQ(LifeOf(ns_), seconds(10));
  clock_.Advance(seconds(11));
  EXPECT_EQ(Look(1, 4).matched_blocks, 0u) << "at once, for what is here";
  CrashAndRestart();
  EXPECT_EQ(LifeOf(ns_), seconds(10));
  // Nor does a namespace that was dropped hold anybody to its old life.
  ASSERT_OK(engine_->DropNamespace(ns_));
  Open(spec_, seconds(5));
  EXPECT_EQ(LifeOf(ns_), seconds(5));
}

TEST_F(BlockLifeTest, TheNodeHasADefaultForNewNamespaces) {
  Options options;
  options.engine.block_life = seconds(10);
  StartWithLife(options);
  EXPECT_EQ(LifeOf(ns_), kLife);
  Open(TestSpec("another"), Duration(0));
  EXPECT_EQ(LifeOf(ns_), seconds(10));
}

TEST_F(BlockLifeTest, LivesThatNobodyCanKeepAreRefused) {
  StartWithLife();
  for (const Duration life :
       {Duration(milliseconds(999)), Duration(hours(24 * 90 + 1)), Duration(seconds(-5))}) {
    EXPECT_THAT(engine_->OpenNamespace(spec_, false, life),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("field 'block_life': got")));
  }
  EXPECT_EQ(LifeOf(ns_), kLife);
}

}  // namespace
}  // namespace cairn::cache::testing
