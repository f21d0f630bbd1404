// A namespace with pools in a whole engine: what is stored in which pool, joint matches and their
// leases, losses, restarts. Bytes are verified wherever a length is restored.

#include <algorithm>
#include <random>
#include <set>

#include "services/cache/store/engine/in_place.h"
#include "tests/unit/cache/store/engine/source_fixture.h"

namespace cairn::cache {
namespace {

using ::testing::ElementsAre;
using testing::EngineTest;
using testing::Fetched;
using ::testing::HasSubstr;
using testing::StatusIs;
using testing::TestKey;

constexpr uint32_t kFull = 0, kWindow = 1, kState = 2;

class PoolsTest : public EngineTest {
 protected:
  PoolsTest() {
    spec_ = testing::TestSpec("pooled");
    spec_.layout.block_tokens = 16;
    spec_.layout.form = OpaqueLayout{.description = "engine",
                                     .pools = {{"full", 16, 2, 3000, true},
                                               {"window", 32, 1, 5000, false},
                                               {"state", 64, 3, 2000, false}}};
  }

  struct Prompt {
    uint64_t first = 0;
    std::vector<BlockKey> units;
  };
  static Prompt PromptOf(uint64_t number, uint32_t units) {
    Prompt prompt{.first = 10'000 * (number + 1), .units = {}};
    for (uint64_t n = 0; n < units; ++n) prompt.units.push_back(TestKey(prompt.first + n));
    return prompt;
  }
  uint32_t UnitsOf(uint32_t pool) const { return spec_.layout.BlockTokensOf(pool) / 16; }
  uint32_t BlocksOf(const Prompt& prompt, uint32_t pool) const {
    return static_cast<uint32_t>(prompt.units.size()) / UnitsOf(pool);
  }
  BlockKey KeyIn(const Prompt& prompt, uint32_t pool, uint32_t block) const {
    return PoolKey(prompt.units[(block + 1) * UnitsOf(pool) - 1], pool);
  }
  static std::byte ByteOf(const Prompt& prompt, uint32_t pool, uint32_t block, uint32_t part) {
    return static_cast<std::byte>(prompt.first / 10'000 * 31 + pool * 97 + block * 7 + part);
  }
  std::vector<std::byte> Bytes(const Prompt& prompt, uint32_t pool, uint32_t block,
                               uint32_t part) const {
    const std::vector<uint64_t> lengths = {spec_.layout.MaxPartBytesOf(pool)};
    std::vector<std::byte> bytes(format::PartBytes(lengths), ByteOf(prompt, pool, block, part));
    format::SealPart(bytes, format::Codec::kOpaque, RectOf(pool, part),
                     static_cast<uint16_t>(spec_.layout.BlockTokensOf(pool)), lengths);
    return bytes;
  }
  static format::PartRect RectOf(uint32_t pool, uint32_t part) {
    return {static_cast<uint16_t>(pool), static_cast<uint16_t>(pool + 1),
            static_cast<uint16_t>(part), static_cast<uint16_t>(part + 1)};
  }
  ReservePartRequest PartRequest(const Prompt& prompt, uint32_t pool, uint32_t block,
                                 uint32_t part) const {
    ReservePartRequest request;
    request.key = KeyIn(prompt, pool, block);
    if (pool == kFull && block > 0) request.parent = KeyIn(prompt, pool, block - 1);
    request.part = RectOf(pool, part);
    request.bytes = Bytes(prompt, pool, block, part).size();
    return request;
  }
  Status StorePart(const Prompt& prompt, uint32_t pool, uint32_t block, uint32_t part) {
    CAIRN_ASSIGN_OR_RETURN(const ReservationId id, Reserve(PartRequest(prompt, pool, block, part)));
    CAIRN_RETURN_IF_ERROR(engine_->Write(session_, id, 0, Bytes(prompt, pool, block, part)));
    return CommitOne(id);
  }
  Status StoreBlock(const Prompt& prompt, uint32_t pool, uint32_t block) {
    for (uint32_t part = 0; part < spec_.layout.Pools()[pool].parts; ++part) {
      CAIRN_RETURN_IF_ERROR(StorePart(prompt, pool, block, part));
    }
    return OkStatus();
  }
  void StorePool(const Prompt& prompt, uint32_t pool) {
    for (uint32_t b = 0; b < BlocksOf(prompt, pool); ++b) {
      ASSERT_OK(StoreBlock(prompt, pool, b)) << "pool " << pool << " block " << b;
    }
  }
  void StoreAll(const Prompt& prompt) {
    for (const uint32_t pool : {kFull, kWindow, kState}) StorePool(prompt, pool);
  }
  // Later than all uses so far: blocks of one tick leave in no order.
  void StoreLater(const Prompt& prompt) {
    clock_.Advance(std::chrono::milliseconds(100));
    StoreAll(prompt);
  }

  // A window of 48 tokens.
  static JointQuestion Question() {
    return {.pools = {{.pool = kFull},
                      {.pool = kWindow, .tail_tokens = 47},
                      {.pool = kState, .tail_tokens = 1}},
            .all = true};
  }
  Result<MatchResult> Ask(const Prompt& prompt, JointQuestion question = Question(),
                          bool lease = true) {
    MatchRequest request;
    request.session = session_;
    request.fingerprint = ns_;
    request.keys = prompt.units;
    request.lease = lease;
    request.joint = std::move(question);
    return engine_->Match(request);
  }
  static std::set<uint64_t> Lengths(const MatchResult& match, const Prompt& prompt) {
    std::set<uint64_t> lengths;
    for (uint64_t n = 16; n <= 16 * prompt.units.size(); n += 16) {
      if (match.joint.Restorable(n, 16)) lengths.insert(n);
    }
    return lengths;
  }
  // Fetches the lease and compares every byte of every part. The blocks that failed.
  std::set<uint32_t> Verify(const Prompt& prompt, const MatchResult& match) {
    std::set<uint32_t> failed;
    EXPECT_TRUE(match.lease);
    if (!match.lease) return failed;
    std::vector<std::pair<uint32_t, uint32_t>> blocks;  // Pool and block, by number in the lease.
    for (const PoolRun& run : match.joint.pool_runs) {
      for (uint32_t b = 0; b < run.blocks; ++b) blocks.emplace_back(run.pool, run.first_block + b);
    }
    EXPECT_EQ(blocks.size(), match.matched_blocks);
    const Fetched fetched = Fetch(*match.lease);
    std::map<uint32_t, std::set<uint32_t>> parts;
    for (const FetchedSlice& slice : fetched.slices) {
      const auto [pool, block] = blocks.at(slice.block);
      EXPECT_EQ(slice.layer, pool);
      EXPECT_EQ(slice.slice_bytes, spec_.layout.MaxPartBytesOf(pool));
      const std::byte expected = ByteOf(prompt, pool, block, slice.part.head_begin);
      EXPECT_TRUE(std::all_of(slice.data.begin(), slice.data.end(),
                              [expected](std::byte b) { return b == expected; }))
          << "pool " << pool << " block " << block;
      parts[slice.block].insert(slice.part.head_begin);
    }
    for (const auto& [block, reason] : fetched.failures) failed.insert(block);
    for (uint32_t b = 0; b < blocks.size(); ++b) {
      if (failed.contains(b)) continue;
      EXPECT_EQ(parts[b].size(), spec_.layout.Pools()[blocks[b].first].parts) << "block " << b;
    }
    return failed;
  }
  void Release(const MatchResult& match) {
    if (match.lease) {
      EXPECT_OK(engine_->Release(session_, {&*match.lease, 1}));
    }
  }
  // Restores the longest length, byte by byte, and says which lengths there are.
  std::set<uint64_t> Restorable(const Prompt& prompt) {
    const auto match = Ask(prompt);
    EXPECT_OK(match);
    if (!match.ok()) return {};
    const std::set<uint64_t> lengths = Lengths(*match, prompt);
    EXPECT_EQ(match->joint.restorable_tokens, lengths.empty() ? 0 : *lengths.rbegin());
    if (match->lease) {
      EXPECT_TRUE(Verify(prompt, *match).empty());
    }
    Release(*match);
    return lengths;
  }
};

TEST_F(PoolsTest, TheLongestLengthIsLeasedAndFetchedPoolByPool) {
  Start();
  const Prompt prompt = PromptOf(0, 14);
  StoreAll(prompt);
  const auto match = Ask(prompt);
  ASSERT_OK(match);
  EXPECT_EQ(match->joint.restorable_tokens, 192u);
  EXPECT_EQ(Lengths(*match, prompt), (std::set<uint64_t>{64, 128, 192}));
  EXPECT_THAT(match->joint.pool_runs,
              ElementsAre(PoolRun{0, 0, 12}, PoolRun{1, 4, 2}, PoolRun{2, 2, 1}));
  EXPECT_EQ(match->matched_blocks, 15u);
  EXPECT_TRUE(Verify(prompt, *match).empty());
  Release(*match);
  const EngineStats stats = engine_->GetStats();
  EXPECT_EQ(stats.matched_tokens, 192u);
  EXPECT_EQ(stats.missed_tokens, 14u * 16 - 192);
  EXPECT_EQ(stats.blocks, 14u + 7 + 3);
}

TEST_F(PoolsTest, AQuestionHasBoundsAndTheyAreNamed) {
  Start();
  const Prompt prompt = PromptOf(0, 8);
  JointQuestion question = Question();
  question.most_tokens = 129;
  EXPECT_THAT(Ask(prompt, question),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'most_tokens': got 129")));
  question.pools.resize(65536);
  EXPECT_THAT(Ask(prompt, question),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'pools': got 65536")));
  // A namespace without pools has no joint matches.
  const auto plain = engine_->OpenNamespace(testing::TestSpec(), false);
  ASSERT_OK(plain);
  ns_ = plain->fingerprint;
  EXPECT_THAT(Ask(prompt),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("the namespace has no pools")));
}

TEST_F(PoolsTest, OnlyLengthsOfTheStepAndTheLimitCount) {
  Start();
  const Prompt prompt = PromptOf(0, 16);
  StoreAll(prompt);
  JointQuestion question = Question();
  question.step_tokens = 128;
  auto match = Ask(prompt, question);
  ASSERT_OK(match);
  EXPECT_EQ(match->joint.restorable_tokens, 256u);
  EXPECT_EQ(match->joint.restorable, std::string("\x03", 1));
  Release(*match);
  question.most_tokens = 255;  // The last token has to be computed.
  match = Ask(prompt, question);
  ASSERT_OK(match);
  EXPECT_EQ(match->joint.restorable_tokens, 128u);
  EXPECT_FALSE(match->joint.limiting_pool);
  EXPECT_EQ(match->miss_reason, MissReason::kNone);
  Release(*match);
}

TEST_F(PoolsTest, ADraftNeedsABlockMoreThanItGives) {
  Start();
  const Prompt prompt = PromptOf(0, 8);
  for (uint32_t b = 0; b < 5; ++b) ASSERT_OK(StoreBlock(prompt, kFull, b));
  const auto match =
      Ask(prompt, {.pools = {{.pool = kFull, .tail_tokens = 0, .proof_blocks = 1}}, .all = true});
  ASSERT_OK(match);
  EXPECT_EQ(match->joint.restorable_tokens, 64u);
  EXPECT_THAT(match->joint.pool_runs, ElementsAre(PoolRun{0, 0, 4}));
  EXPECT_EQ(match->joint.limiting_pool, kFull);
  EXPECT_EQ(match->miss_reason, MissReason::kAbsent);
  Release(*match);
}

// Invariant 4: the order of commits does not matter.
TEST_F(PoolsTest, EveryOrderOfCommitsGivesTheSameLengths) {
  Start({.host_bytes = 16 << 20});
  // All parts of one block of state, two of the window and four of full attention: 3 + 2 + 8.
  std::vector<std::array<uint32_t, 3>> parts;
  for (uint32_t pool = 0; pool < 3; ++pool) {
    for (uint32_t b = 0; b < 4 / UnitsOf(pool); ++b) {
      for (uint32_t p = 0; p < spec_.layout.Pools()[pool].parts; ++p) parts.push_back({pool, b, p});
    }
  }
  ASSERT_EQ(parts.size(), 13u);
  std::mt19937_64 random(1);
  for (uint64_t round = 0; round < 200; ++round) {
    std::shuffle(parts.begin(), parts.end(), random);
    const Prompt prompt = PromptOf(round, 4);
    std::set<uint64_t> before;
    for (const auto& [pool, block, part] : parts) {
      ASSERT_TRUE(before.empty()) << "a length before the last part";
      ASSERT_OK(StorePart(prompt, pool, block, part));
      before = Restorable(prompt);
    }
    ASSERT_EQ(before, std::set<uint64_t>{64});
  }
}

// Invariant 5.
TEST_F(PoolsTest, PartsOfAnotherPoolCompleteNothing) {
  Start();
  const Prompt prompt = PromptOf(0, 8);
  ASSERT_OK(StorePart(prompt, kState, 0, 0));
  ASSERT_OK(StorePart(prompt, kState, 0, 2));
  EXPECT_THAT(StorePart(prompt, kState, 0, 2), StatusIs(StatusCode::kAlreadyExists, ::testing::_));
  // The third part, of the same key, in the row of another pool.
  ReservePartRequest wrong = PartRequest(prompt, kState, 0, 1);
  wrong.part = RectOf(kWindow, 0);
  EXPECT_THAT(Reserve(wrong),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("field 'key': parts of block")));
  EXPECT_FALSE((*engine_->Exists(ns_, {&wrong.key, 1}))[0]);
  ASSERT_OK(StorePart(prompt, kState, 0, 1));
  EXPECT_TRUE((*engine_->Exists(ns_, {&wrong.key, 1}))[0]);
  EXPECT_THAT(Reserve(wrong),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("is one of pool 'state', expected one of pool 'window'")));
}

TEST_F(PoolsTest, AWriterOfAnotherPoolLosesToTheFirstCommit) {
  Start();
  const Prompt prompt = PromptOf(0, 8);
  ReservePartRequest late = PartRequest(prompt, kWindow, 0, 0);
  late.key = KeyIn(prompt, kState, 0);
  const auto id = Reserve(late);
  ASSERT_OK(id);
  ASSERT_OK(StorePart(prompt, kState, 0, 0));
  ASSERT_OK(engine_->Write(session_, *id, 0, Bytes(prompt, kWindow, 0, 0)));
  EXPECT_THAT(CommitOne(*id), StatusIs(StatusCode::kInvalidArgument, HasSubstr("another pool")));
}

TEST_F(PoolsTest, PartsLieWithinTheirPool) {
  Start();
  const Prompt prompt = PromptOf(0, 8);
  const auto refused = [&](const format::PartRect& rect, const char* says) {
    ReservePartRequest part = PartRequest(prompt, kFull, 0, 0);
    part.part = rect;
    EXPECT_THAT(Reserve(part), StatusIs(StatusCode::kInvalidArgument, HasSubstr(says)));
  };
  refused({0, 2, 0, 1}, "a part of pool 'full'");
  refused({1, 2, 1, 2}, "a part of pool 'window'");
  refused({0, 1, 2, 3}, "a part of pool 'full'");
  refused({3, 4, 0, 1}, "layers [3, 4)");
  refused({0, 1, 0, 2}, "one head of an opaque layout");
  ReservePartRequest large = PartRequest(prompt, kState, 0, 0);
  large.bytes = 128 + 2001;
  EXPECT_THAT(Reserve(large), StatusIs(StatusCode::kInvalidArgument, HasSubstr("'bytes'")));
}

TEST_F(PoolsTest, ParentsAreOfTheSamePoolOrRefused) {
  Start();
  const Prompt prompt = PromptOf(0, 8);
  ASSERT_OK(StoreBlock(prompt, kWindow, 0));
  ReservePartRequest part = PartRequest(prompt, kWindow, 1, 0);
  part.parent = KeyIn(prompt, kWindow, 0);
  EXPECT_THAT(Reserve(part), StatusIs(StatusCode::kInvalidArgument,
                                      HasSubstr("blocks of pool 'window' stand alone")));
  part = PartRequest(prompt, kFull, 1, 0);
  part.parent = KeyIn(prompt, kWindow, 0);
  EXPECT_THAT(Reserve(part), StatusIs(StatusCode::kInvalidArgument, HasSubstr("'parent': block")));
}

// Invariant 3.
TEST_F(PoolsTest, ALeaseKeepsItsBlocksInEveryPool) {
  StartWithoutDevice({.host_bytes = 512 << 10, .disk = false});
  const Prompt kept = PromptOf(0, 12);
  StoreAll(kept);
  const auto lease = Ask(kept);
  ASSERT_OK(lease);
  ASSERT_EQ(lease->joint.restorable_tokens, 192u);
  for (uint64_t n = 1; n < 20; ++n) StoreLater(PromptOf(n, 12));
  EXPECT_TRUE(Verify(kept, *lease).empty());
  const auto again = Ask(kept);
  ASSERT_OK(again);
  EXPECT_EQ(again->joint.restorable_tokens, 192u);
  // The blocks that only shorter lengths need were not leased, and had been used longest ago.
  EXPECT_EQ(Lengths(*again, kept), std::set<uint64_t>{192});
  Release(*again);
  Release(*lease);
  for (uint64_t n = 20; n < 40; ++n) StoreLater(PromptOf(n, 12));
  EXPECT_TRUE(Restorable(kept).empty());
}

// Invariant 2: by eviction.
TEST_F(PoolsTest, EvictionLeavesASubsetAndEveryLengthRestores) {
  StartWithoutDevice({.host_bytes = 1 << 20, .disk = false});
  std::mt19937_64 random(5);
  std::vector<std::set<uint64_t>> before(12);
  for (uint64_t round = 0; round < 120; ++round) {
    const uint64_t number = random() % before.size();
    const Prompt prompt = PromptOf(number, 16);
    if (random() % 3 == 0) {
      for (const uint32_t pool : {kFull, kWindow, kState}) {
        for (uint32_t b = 0; b < BlocksOf(prompt, pool); ++b) {
          const Status status = StoreBlock(prompt, pool, b);
          ASSERT_TRUE(status.ok() || status.code() == StatusCode::kAlreadyExists)
              << ToString(status);
        }
      }
      before[number] = {64, 128, 192, 256};
    }
    const std::set<uint64_t> now = Restorable(prompt);
    ASSERT_TRUE(std::includes(before[number].begin(), before[number].end(), now.begin(), now.end()))
        << "a length that was not restorable";
    before[number] = now;
  }
  EXPECT_GT(engine_->GetStats().tiers[TierKind::kHost]->evicted_blocks, 100u);
}

// Invariant 2: by damage.
TEST_F(PoolsTest, ADamagedBlockOfAnyPoolMakesTheAnswerShorter) {
  for (const uint32_t pool : {kFull, kWindow, kState}) {
    StartWithoutDevice({.disk = false});
    const Prompt prompt = PromptOf(0, 12);
    StoreAll(prompt);
    const auto match = Ask(prompt);
    ASSERT_OK(match);
    ASSERT_EQ(match->joint.restorable_tokens, 192u);
    // The last block of the pool in the lease.
    uint32_t damaged = 0;
    for (const PoolRun& run : match->joint.pool_runs) {
      damaged += run.blocks;
      if (run.pool == pool) break;
    }
    --damaged;
    bool done = false;
    on_slice_ = [&](const FetchedSlice& slice) {
      if (slice.block != damaged || std::exchange(done, true)) return;
      const_cast<std::byte&>(slice.data[5]) ^= std::byte{1};
    };
    Fetch(*match->lease);
    on_slice_ = nullptr;
    EXPECT_EQ(Verify(prompt, *match), std::set<uint32_t>{damaged});
    Release(*match);
    const auto after = Ask(prompt);
    ASSERT_OK(after);
    EXPECT_LT(after->joint.restorable_tokens, 192u);
    EXPECT_EQ(after->joint.limiting_pool, pool);
    EXPECT_EQ(after->miss_reason, MissReason::kCorrupt);
    EXPECT_TRUE(Verify(prompt, *after).empty());
    Release(*after);
    engine_->CloseSession(session_);
    engine_.reset();
  }
}

// Invariant 2: kill -9 between the commits of two pools.
TEST_F(PoolsTest, ACrashBetweenTwoPoolsLeavesASubset) {
  Start();
  const Prompt whole = PromptOf(0, 12), half = PromptOf(1, 12);
  StoreAll(whole);
  StorePool(half, kFull);
  StorePool(half, kWindow);
  ASSERT_OK(StorePart(half, kState, 0, 0));
  Flush();
  CrashAndRestart();
  EXPECT_EQ(Restorable(whole), (std::set<uint64_t>{64, 128, 192}));
  EXPECT_TRUE(Restorable(half).empty());
  // What was not flushed is lost, and nothing else.
  ASSERT_OK(StoreBlock(half, kState, 1));
  EXPECT_EQ(Restorable(half), std::set<uint64_t>{128});
  CrashAndRestart();
  const std::set<uint64_t> left = Restorable(half);
  EXPECT_TRUE(left.empty() || left == std::set<uint64_t>{128});
  // The sizes of pools are known again.
  EXPECT_EQ(Restorable(whole), (std::set<uint64_t>{64, 128, 192}));
}

// A bump hides all pools at once: old states under new weights would be wrong.
TEST_F(PoolsTest, ABumpHidesEveryPool) {
  Start();
  const Prompt prompt = PromptOf(0, 4);
  StoreAll(prompt);
  ASSERT_OK(engine_->BumpEpoch(ns_));
  EXPECT_TRUE(Restorable(prompt).empty());
  for (const uint32_t pool : {kFull, kWindow, kState}) {
    const BlockKey key = KeyIn(prompt, pool, 0);
    EXPECT_FALSE((*engine_->Exists(ns_, {&key, 1}))[0]) << pool;
  }
}

// Without it, nobody who has not kept the events before can tell which hash of an engine's it is.
TEST_F(PoolsTest, EveryEventOfABlockSaysItsPool) {
  StartWithoutDevice({.host_bytes = 1 << 20, .disk_bytes = 2 << 20});
  std::map<BlockKey, uint32_t> pool_of;
  auto queue = engine_->Watch({});
  ASSERT_OK(queue);
  std::map<CacheEvent::Kind, std::set<uint32_t>> pools;
  const auto listen = [&] {
    for (;;) {
      const auto events = (*queue)->Next(256, TimePoint());
      ASSERT_OK(events);
      if (events->empty()) return;
      for (const CacheEvent& event : *events) {
        ASSERT_TRUE(pool_of.contains(event.key));
        EXPECT_EQ(event.pool, pool_of[event.key]) << static_cast<int>(event.kind);
        pools[event.kind].insert(event.pool);
      }
    }
  };
  // More than the memory holds, and then more than the disk does.
  const std::set<uint32_t> all = {kFull, kWindow, kState};
  for (uint64_t number = 0; number < 200 && pools[CacheEvent::Kind::kRemoved] != all; ++number) {
    const Prompt prompt = PromptOf(number, 16);
    for (const uint32_t pool : all) {
      for (uint32_t b = 0; b < BlocksOf(prompt, pool); ++b) pool_of[KeyIn(prompt, pool, b)] = pool;
    }
    StoreLater(prompt);
    Flush();
    listen();
  }
  for (const auto kind : {CacheEvent::Kind::kStored, CacheEvent::Kind::kTierAdded,
                          CacheEvent::Kind::kTierRemoved, CacheEvent::Kind::kRemoved}) {
    EXPECT_EQ(pools[kind], all) << static_cast<int>(kind);
  }
}

TEST_F(PoolsTest, APlaceSaysWhichPoolItIsOf) {
  StartWithoutDevice();
  const Prompt prompt = PromptOf(0, 4);
  StoreAll(prompt);
  MatchRequest request;
  request.session = session_;
  request.fingerprint = ns_;
  request.keys = prompt.units;
  request.joint = Question();
  std::vector<PlacedPart> places;
  const auto match = engine_->in_place()->MatchInPlace(request, 100, &places);
  ASSERT_OK(match);
  ASSERT_EQ(match->matched_blocks, 4u + 2 + 1);
  ASSERT_EQ(places.size(), 4u * 2 + 2 * 1 + 1 * 3);
  std::map<uint32_t, std::set<uint32_t>> parts;  // Of a pool's row.
  for (const PlacedPart& place : places) {
    EXPECT_EQ(place.part.layer_end, place.part.layer_begin + 1);
    parts[place.part.layer_begin].insert(place.part.head_begin);
  }
  EXPECT_EQ(parts[kFull].size(), 2u);
  EXPECT_EQ(parts[kWindow], std::set<uint32_t>{0});
  EXPECT_EQ(parts[kState].size(), 3u);
  Release(*match);
}

TEST_F(PoolsTest, AnAnnouncementIsOfBlocksOfPool0) {
  Start();
  const Prompt prompt = PromptOf(0, 8);
  for (uint32_t b = 0; b < 4; ++b) ASSERT_OK(StoreBlock(prompt, kFull, b));
  MatchRequest request;
  request.session = session_;
  request.fingerprint = ns_;
  request.keys = prompt.units;
  request.joint = {.pools = {{.pool = kFull}}};
  request.announce = true;
  const auto match = engine_->Match(request);
  ASSERT_OK(match);
  EXPECT_EQ(match->matched_blocks, 4u);
  EXPECT_EQ(engine_->GetStats().announced_blocks, 4u);
  Release(*match);
}

TEST_F(PoolsTest, QuestionsWithoutALeaseLeaveNothing) {
  Start();
  const Prompt prompt = PromptOf(0, 8);
  StoreAll(prompt);
  const auto match = Ask(prompt, Question(), /*lease=*/false);
  ASSERT_OK(match);
  EXPECT_FALSE(match->lease);
  EXPECT_EQ(match->joint.restorable_tokens, 128u);
  EXPECT_EQ(match->joint.pool_runs.size(), 3u);
  EXPECT_EQ(engine_->GetStats().matched_tokens, 0u);
}

// Blocks that another place has, as they come through a match without pools.
class PooledSourceTest : public testing::SourceTest {
 protected:
  PooledSourceTest() {
    spec_ = testing::TestSpec("pooled");
    spec_.layout.form =
        OpaqueLayout{.description = "engine",
                     .pools = {{"full", 16, 2, 3000, true}, {"state", 16, 1, 2000, false}}};
  }
  // The source has a block with these parts.
  void Give(const BlockKey& key, const std::vector<format::PartRect>& rects) {
    SourceBlock block;
    std::vector<std::vector<std::byte>> bytes;
    for (const format::PartRect& rect : rects) {
      const std::vector<uint64_t> lengths = {1000};
      bytes.emplace_back(format::PartBytes(lengths), std::byte{5});
      format::SealPart(bytes.back(), format::Codec::kOpaque, rect, 16, lengths);
      block.parts.push_back({rect, static_cast<uint32_t>(bytes.back().size())});
    }
    source_.Put(ns_, key, std::move(block), std::move(bytes));
  }
  std::map<uint32_t, MissReason> FailuresOf(const BlockKey& key) {
    const auto asked = Ask({key});
    EXPECT_TRUE(asked->answered());
    EXPECT_EQ(asked->result().matched_blocks, 1u);
    const LeaseId lease = *asked->result().lease;
    const Fetched fetched = Fetch(lease);
    EXPECT_OK(engine_->Release(session_, {&lease, 1}));
    return fetched.failures;
  }
};

TEST_F(PooledSourceTest, BlocksOfEachPoolBecomeBlocksOfThisNode) {
  StartWithSource();
  const auto units = testing::TestKeys(1, 1);
  Give(units[0], {{0, 1, 0, 1}, {0, 1, 1, 2}});
  Give(PoolKey(units[0], 1), {{1, 2, 0, 1}});
  MatchRequest request;
  request.session = session_;
  request.fingerprint = ns_;
  request.keys = units;
  request.joint = {.pools = {{.pool = 0}, {.pool = 1, .tail_tokens = 1}}};
  auto match = engine_->Match(request);
  ASSERT_OK(match);
  EXPECT_EQ(match->further, nullptr) << "only the tiers are asked";
  EXPECT_EQ(match->joint.restorable_tokens, 0u);
  EXPECT_TRUE(FailuresOf(units[0]).empty());
  EXPECT_TRUE(FailuresOf(PoolKey(units[0], 1)).empty());
  match = engine_->Match(request);
  ASSERT_OK(match);
  EXPECT_EQ(match->joint.restorable_tokens, 16u);
  EXPECT_OK(engine_->Release(session_, {&*match->lease, 1}));
}

TEST_F(PooledSourceTest, PartsOfSeveralPoolsAreNoBlock) {
  StartWithSource();
  const auto keys = testing::TestKeys(1, 2);
  // As many cells as a block of the first pool has.
  Give(keys[0], {{0, 1, 0, 1}, {1, 2, 0, 1}});
  EXPECT_EQ(FailuresOf(keys[0]).size(), 1u);
  Give(keys[1], {{1, 2, 1, 2}});
  EXPECT_EQ(FailuresOf(keys[1]).size(), 1u);
  EXPECT_EQ(engine_->GetStats().blocks, 0u);
}

}  // namespace
}  // namespace cairn::cache
