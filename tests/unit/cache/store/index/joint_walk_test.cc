#include "services/cache/store/index/joint_walk.h"

#include <chrono>
#include <random>
#include <set>

#include "common/status/matchers.h"
#include "tests/unit/cache/store/index/index_fixture.h"

namespace cairn::cache {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::KeyOf;

constexpr TierKind kHost = TierKind::kHost;

// An index of three pools: full attention, a window and a state, in blocks of 1, 2 and 4 units.
class JointWalkTest : public ::testing::Test {
 protected:
  static Layout ThreePools() {
    Layout layout;
    layout.block_tokens = 16;
    layout.form = OpaqueLayout{.description = "engine",
                               .pools = {{"full", 16, 1, 100, true},
                                         {"window", 32, 1, 100, false},
                                         {"state", 64, 1, 100, false}}};
    return layout;
  }
  static std::vector<BlockKey> Units(uint64_t first, uint64_t count) {
    std::vector<BlockKey> keys;
    for (uint64_t n = first; n < first + count; ++n) keys.push_back(KeyOf(n));
    return keys;
  }
  uint32_t UnitsOf(uint32_t pool) const { return layout_.BlockTokensOf(pool) / 16; }
  BlockKey KeyIn(const std::vector<BlockKey>& units, uint32_t pool, uint32_t block) const {
    return PoolKey(units[(block + 1) * UnitsOf(pool) - 1], pool);
  }
  void Store(const std::vector<BlockKey>& units, uint32_t pool, uint32_t block, uint32_t now = 0) {
    std::optional<BlockKey> parent;
    if (pool == 0 && block > 0) parent = KeyIn(units, pool, block - 1);
    ASSERT_TRUE(index_.Insert(KeyIn(units, pool, block), parent, PartOf(pool), kHost, 0, now));
  }
  PartPlaces PartOf(uint32_t pool) {
    ++extents_;
    return {PartPlace{layout_.WholeOf(pool), {{100, 100, 100}}, {{extents_, extents_, extents_}}}};
  }
  void StoreAll(const std::vector<BlockKey>& units, uint32_t now = 0) {
    for (uint32_t pool = 0; pool < 3; ++pool) {
      for (uint32_t b = 0; b < units.size() / UnitsOf(pool); ++b) Store(units, pool, b, now);
    }
  }
  // A window of 48 tokens.
  static JointQuestion Question() {
    return {.pools = {{.pool = 0}, {.pool = 1, .tail_tokens = 47}, {.pool = 2, .tail_tokens = 1}},
            .all = true};
  }
  JointWalk Walk(const std::vector<BlockKey>& units, uint32_t now = 0,
                 const JointQuestion& question = Question()) {
    EXPECT_OK(CheckQuestion(layout_, question, units.size()));
    auto walk =
        WalkJointly(index_, JointPlan(layout_, question, units), now, true, NextUse::kUnknown);
    EXPECT_OK(walk);
    EXPECT_TRUE(index_.CheckInvariants());
    return walk.ok() ? *std::move(walk) : JointWalk();
  }
  std::set<uint64_t> Lengths(const JointWalk& walk, size_t units) const {
    std::set<uint64_t> lengths;
    for (uint64_t n = 16; n <= 16 * units; n += 16) {
      if (walk.answer.Restorable(n, 16)) lengths.insert(n);
    }
    return lengths;
  }
  // Takes the block out of its tier, as damage does.
  void Lose(const BlockKey& key) {
    index_.RemoveFromTier(*index_.FindAlive(key), kHost, &released_);
  }

  const Layout layout_ = ThreePools();
  BlockIndex index_{PoolGrid(layout_), nullptr, 42};
  ReleaseList released_;
  uint64_t extents_ = 0;
};

TEST_F(JointWalkTest, TheLongestLengthIsLeasedPoolByPool) {
  const auto units = Units(0, 11);
  StoreAll(units);
  const JointWalk walk = Walk(units);
  EXPECT_EQ(walk.answer.restorable_tokens, 128u);
  EXPECT_EQ(Lengths(walk, 11), (std::set<uint64_t>{64, 128}));
  EXPECT_THAT(walk.answer.pool_runs,
              ElementsAre(PoolRun{0, 0, 8}, PoolRun{1, 2, 2}, PoolRun{2, 1, 1}));
  EXPECT_FALSE(walk.answer.limiting_pool) << "a longer one would need more keys";
  EXPECT_EQ(walk.walk.matched, 11u);
  ASSERT_EQ(walk.keys.size(), 11u);
  EXPECT_EQ(walk.keys[8], KeyIn(units, 1, 2));
  EXPECT_EQ(walk.keys[10], KeyIn(units, 2, 1));
  // The chain is one path; the others are one each.
  EXPECT_EQ(walk.walk.path_runs.size(), 4u);
  EXPECT_EQ(walk.walk.bytes, 1100u);
}

TEST_F(JointWalkTest, ALostTailMakesTheAnswerShorter) {
  const auto units = Units(0, 16);
  StoreAll(units);
  Lose(KeyIn(units, 2, 3));
  JointWalk walk = Walk(units);
  EXPECT_EQ(walk.answer.restorable_tokens, 192u);
  EXPECT_EQ(walk.answer.limiting_pool, 2u);
  EXPECT_EQ(walk.lost, KeyIn(units, 2, 3));
  Lose(KeyIn(units, 1, 4));  // Tokens 128 to 159, which only length 192 needs.
  walk = Walk(units);
  EXPECT_EQ(walk.answer.restorable_tokens, 128u);
  EXPECT_EQ(walk.answer.limiting_pool, 1u);
  Lose(KeyIn(units, 0, 5));
  walk = Walk(units);
  EXPECT_EQ(walk.answer.restorable_tokens, 64u);
  EXPECT_EQ(walk.answer.limiting_pool, 0u);
  EXPECT_EQ(Lengths(walk, 16), (std::set<uint64_t>{64}));
}

TEST_F(JointWalkTest, OnlyWhatTheLengthNeedsCountsAsUsed) {
  const auto units = Units(0, 16);
  StoreAll(units, 1);
  Walk(units, 100);
  std::set<std::pair<uint32_t, uint32_t>> used;
  for (uint32_t pool = 0; pool < 3; ++pool) {
    for (uint32_t b = 0; b < 16 / UnitsOf(pool); ++b) {
      if (index_.MetaAt(*index_.Find(KeyIn(units, pool, b))).last_use == 100) used.emplace(pool, b);
    }
  }
  std::set<std::pair<uint32_t, uint32_t>> expected = {{1, 6}, {1, 7}, {2, 3}};
  for (uint32_t b = 0; b < 16; ++b) expected.emplace(0, b);
  EXPECT_EQ(used, expected);
  // So earlier tails leave first, and then full blocks from the end.
  std::vector<BlockKey> left;
  while (const auto evicted = index_.EvictOne(kHost, &released_)) left.push_back(evicted->key);
  ASSERT_EQ(left.size(), 28u);
  const std::set<BlockKey> first(left.begin(), left.begin() + 9);
  for (uint32_t b = 0; b < 6; ++b) EXPECT_TRUE(first.contains(KeyIn(units, 1, b))) << b;
  for (uint32_t b = 0; b < 3; ++b) EXPECT_TRUE(first.contains(KeyIn(units, 2, b))) << b;
}

TEST_F(JointWalkTest, FullBlocksBehindTheLengthLeaveBeforeThoseUnderIt) {
  const auto units = Units(0, 16);
  StoreAll(units, 1);
  Lose(KeyIn(units, 2, 3));
  Lose(KeyIn(units, 2, 2));
  EXPECT_EQ(Walk(units, 100).answer.restorable_tokens, 128u);
  const auto evicted = index_.EvictOne(kHost, &released_, 50);
  ASSERT_TRUE(evicted);
  uint32_t of_pool_0 = evicted->key == KeyIn(units, 0, 15);
  while (const auto next = index_.EvictOne(kHost, &released_, 50)) {
    for (uint32_t b = 0; b < 16; ++b) {
      if (next->key != KeyIn(units, 0, b)) continue;
      ++of_pool_0;
      EXPECT_GE(b, 8u) << "under the length";
    }
  }
  EXPECT_EQ(of_pool_0, 8u);
  EXPECT_EQ(Walk(units, 101).answer.restorable_tokens, 128u);
}

// The names of pools are masks: a hostile client can store a block of one pool under a key that
// another pool would have.
TEST_F(JointWalkTest, ABlockOfAnotherPoolIsNotThere) {
  const auto units = Units(0, 8);
  StoreAll(units);
  Lose(KeyIn(units, 2, 1));
  ASSERT_TRUE(index_.Insert(KeyIn(units, 2, 1), std::nullopt, PartOf(0), kHost, 0, 0));
  EXPECT_EQ(Walk(units).answer.restorable_tokens, 64u);
  Lose(KeyIn(units, 0, 2));
  ASSERT_TRUE(index_.Insert(KeyIn(units, 0, 2), std::nullopt, PartOf(1), kHost, 0, 0));
  EXPECT_EQ(Walk(units).answer.restorable_tokens, 0u);
  EXPECT_EQ(Walk(units).walk.matched, 0u);
}

TEST_F(JointWalkTest, BlocksThatStandAloneAreNotLinked) {
  const auto units = Units(0, 16);
  StoreAll(units);
  const JointQuestion every{.pools = {{.pool = 0}, {.pool = 1}, {.pool = 2}}};
  const JointWalk walk = Walk(units, 5, every);
  EXPECT_EQ(walk.answer.restorable_tokens, 256u);
  EXPECT_EQ(walk.walk.path_runs.size(), 1u + 8 + 4);
  for (uint32_t b = 1; b < 8; ++b) {
    EXPECT_FALSE(index_.ParentOf(*index_.Find(KeyIn(units, 1, b))));
  }
  // Nor does a match without pools link them, whatever it says about their order.
  std::vector<BlockKey> keys = {KeyIn(units, 1, 0), KeyIn(units, 1, 1), KeyIn(units, 0, 0)};
  EXPECT_EQ(index_.Match(keys, 6, true).matched, 3u);
  EXPECT_FALSE(index_.ParentOf(*index_.Find(keys[1])));
  EXPECT_FALSE(index_.ParentOf(*index_.Find(keys[2])));
}

TEST_F(JointWalkTest, ChainedBlocksThatCameWithoutParentsAreLinked) {
  const auto units = Units(0, 8);
  for (uint32_t b = 0; b < 8; ++b) {
    ASSERT_TRUE(index_.Insert(KeyIn(units, 0, b), std::nullopt, PartOf(0), kHost, 0, 0));
  }
  const JointQuestion full{.pools = {{.pool = 0}}};
  EXPECT_EQ(Walk(units, 1, full).walk.path_runs.size(), 1u);
  EXPECT_EQ(index_.ParentOf(*index_.Find(units[7])), units[6]);
}

// The link of a chain moves the block of another pool that hangs at its end, and that was matched
// before: a client named a parent of another pool, and stored that parent later.
TEST_F(JointWalkTest, ALinkMovesNoBlockOutOfTheLease) {
  Layout layout;
  layout.block_tokens = 16;
  layout.form = OpaqueLayout{.description = "engine",
                             .pools = {{"full", 16, 1, 100, true}, {"draft", 16, 1, 100, true}}};
  BlockIndex index{PoolGrid(layout), nullptr, 42};
  const auto units = Units(0, 4);
  const auto store = [&](uint32_t pool, const BlockKey& key, std::optional<BlockKey> parent) {
    ASSERT_TRUE(index.Insert(key, parent, PartOf(pool), kHost, 0, 0));
  };
  const BlockKey draft = PoolKey(units[3], 1);
  store(1, draft, units[3]);
  store(0, units[3], std::nullopt);
  for (uint32_t b = 0; b < 3; ++b) {
    store(0, units[b], b > 0 ? std::optional(units[b - 1]) : std::nullopt);
  }
  const BlockRef before = *index.Find(draft);
  const JointQuestion question{.pools = {{.pool = 1, .tail_tokens = 1}, {.pool = 0}}};
  const auto walk =
      WalkJointly(index, JointPlan(layout, question, units), 1, true, NextUse::kUnknown);
  ASSERT_OK(walk);
  ASSERT_NE(*index.Find(draft), before) << "nothing was moved";
  ASSERT_EQ(walk->walk.path_runs.size(), 2u);
  EXPECT_EQ(walk->walk.path_runs[0].deepest, *index.Find(draft));
  EXPECT_EQ(walk->walk.path_runs[1].deepest, *index.Find(units[3]));
  EXPECT_EQ(walk->walk.path_runs[1].count, 4u);
  EXPECT_TRUE(index.CheckInvariants());
}

TEST_F(JointWalkTest, ARepeatedKeyIsRefusedWhereItWouldBeLeased) {
  auto units = Units(0, 8);
  StoreAll(units);
  units[5] = units[7];  // The last two blocks of the window have one key.
  const JointQuestion window{.pools = {{.pool = 1, .tail_tokens = 64}}};
  EXPECT_THAT(WalkJointly(index_, JointPlan(layout_, window, units), 0, true, NextUse::kUnknown),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("block 3 of pool 1 twice")));
}

TEST_F(JointWalkTest, PoolsAreCountedApart) {
  const auto units = Units(0, 16);
  StoreAll(units);
  Lose(KeyIn(units, 1, 0));
  ASSERT_EQ(index_.of_pools().size(), 3u);
  EXPECT_EQ(index_.of_pools()[0], (PoolTotals{16, 1600}));
  EXPECT_EQ(index_.of_pools()[1], (PoolTotals{7, 700}));
  EXPECT_EQ(index_.of_pools()[2], (PoolTotals{4, 400}));
  EXPECT_EQ(index_.bytes(), 2700u);
}

// Against the plain rules, with random losses, in an index that has other prompts too.
TEST_F(JointWalkTest, RandomLossesAgreeWithThePlainRules) {
  std::mt19937_64 random(7);
  for (uint64_t round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    const auto units = Units(1000 * round, 1 + random() % 40);
    const uint64_t odds = 1 + random() % 20;
    std::vector<std::set<uint32_t>> here(3);
    for (uint32_t pool = 0; pool < 3; ++pool) {
      for (uint32_t b = 0; b < units.size() / UnitsOf(pool); ++b) {
        if (random() % odds == 0 && odds < 20) continue;
        Store(units, pool, b, static_cast<uint32_t>(round));
        here[pool].insert(b);
      }
    }
    const JointQuestion question = Question();
    std::set<uint64_t> expected;
    for (uint64_t n = 64; n <= 16 * units.size(); n += 64) {
      bool holds = true;
      for (uint32_t pool = 0; pool < 3; ++pool) {
        const uint64_t tokens = layout_.BlockTokensOf(pool);
        const uint64_t tail = question.pools[pool].tail_tokens;
        for (uint64_t token = tail == 0 || tail > n ? 0 : n - tail; token < n; ++token) {
          holds = holds && here[pool].contains(static_cast<uint32_t>(token / tokens));
        }
      }
      if (holds) expected.insert(n);
    }
    const JointWalk walk = Walk(units, static_cast<uint32_t>(round));
    ASSERT_EQ(Lengths(walk, units.size()), expected);
    ASSERT_EQ(walk.answer.restorable_tokens, expected.empty() ? 0 : *expected.rbegin());
    size_t leased = 0;
    for (const PoolRun& run : walk.answer.pool_runs) {
      for (uint32_t b = run.first_block; b < run.first_block + run.blocks; ++b, ++leased) {
        ASSERT_EQ(walk.keys.at(leased), KeyIn(units, run.pool, b));
        ASSERT_TRUE(here[run.pool].contains(b));
      }
    }
    ASSERT_EQ(leased, walk.walk.matched);
  }
}

// Invariant: the lock is held for a bounded time. The most blocks that a question may name.
TEST_F(JointWalkTest, AHostileQuestionTakesTimeForItsBlocks) {
  Layout layout;
  layout.block_tokens = 16;
  auto& opaque = std::get<OpaqueLayout>(layout.form = OpaqueLayout{.description = "engine"});
  JointQuestion question{.step_tokens = 16, .all = true};
  for (uint32_t p = 0; p < 4; ++p) {
    opaque.pools.push_back({fmt::format("p{}", p), 16, 1, 100, false});
    question.pools.push_back({.pool = p, .tail_tokens = UINT32_MAX - 15});
  }
  BlockIndex index{PoolGrid(layout), nullptr, 42};
  const auto units = Units(0, 65536);
  for (uint32_t p = 0; p < 4; ++p) {
    for (const BlockKey& unit : units) {
      ASSERT_TRUE(index.Insert(PoolKey(unit, p), std::nullopt,
                               {PartPlace{layout.WholeOf(p), {{9, 9, 9}}, {{1, 1, 1}}}}, kHost, 0,
                               0));
    }
  }
  ASSERT_OK(CheckQuestion(layout, question, units.size()));
  const JointPlan plan(layout, question, units);
  const auto walk = WalkJointly(index, plan, 0, false, NextUse::kUnknown);
  ASSERT_OK(walk);
  EXPECT_EQ(walk->answer.restorable_tokens, 65536u * 16);
  // Every length holds, although each has a tail as long as itself.
  EXPECT_EQ(walk->answer.restorable, std::string(8192, '\xff'));
}

}  // namespace
}  // namespace cairn::cache
