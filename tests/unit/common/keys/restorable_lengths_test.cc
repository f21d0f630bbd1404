#include "common/keys/restorable_lengths.h"

#include <algorithm>
#include <array>
#include <random>
#include <set>

#include "common/status/matchers.h"

namespace cairn {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// ---- The oracle: the rules of the header, token by token, with no arithmetic of blocks.

struct PlainPool {
  uint32_t tokens = 1;           // Of a block.
  std::optional<uint32_t> tail;  // nullopt: every token before the length.
  uint32_t proof = 0;
  std::vector<bool> here;  // By block.
};

bool PlainNeeds(const PlainPool& pool, uint64_t length, uint64_t block) {
  const uint64_t begin = block * pool.tokens;
  for (uint64_t token = begin; token < begin + pool.tokens; ++token) {
    if (token < length && (!pool.tail || token + *pool.tail >= length)) return true;
  }
  return begin >= length && begin < length + uint64_t{pool.proof} * pool.tokens;
}

bool PlainRestorable(const std::vector<PlainPool>& pools, uint64_t length) {
  for (const PlainPool& pool : pools) {
    if (length % pool.tokens != 0) return false;
    if (length / pool.tokens + pool.proof > pool.here.size()) return false;
    for (uint64_t block = 0; block < pool.here.size(); ++block) {
      if (!pool.here[block] && PlainNeeds(pool, length, block)) return false;
    }
  }
  return true;
}

std::set<uint64_t> PlainLengths(const std::vector<PlainPool>& pools, uint32_t step, uint64_t most) {
  std::set<uint64_t> lengths;
  for (uint64_t length = step; length <= most; length += step) {
    if (PlainRestorable(pools, length)) lengths.insert(length);
  }
  return lengths;
}

// ---- Random pools: full, window, state, draft; blocks of 1 to 8 units; losses of every kind.

struct World {
  uint32_t unit = 1;
  uint32_t unit_keys = 0;
  NamespaceSpec spec;
  JointQuestion question;
  std::vector<PlainPool> pools;  // In the question's order.
};

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  uint32_t UpTo(uint32_t most) { return std::uniform_int_distribution<uint32_t>(0, most)(random_); }
  bool Chance(double p) { return std::bernoulli_distribution(p)(random_); }

 private:
  std::mt19937_64 random_;
};

World RandomWorld(Dice& dice) {
  World world;
  world.unit = 1 + dice.UpTo(4);
  world.unit_keys = 1 + dice.UpTo(40);
  auto& layout = std::get<OpaqueLayout>(world.spec.layout.form = OpaqueLayout{"engine"});
  world.spec.layout.block_tokens = world.unit;
  const uint32_t pools = 1 + dice.UpTo(4);
  // Lengths that differ in every way have few multiples in common.
  const bool powers = dice.Chance(0.7);
  const double lost = std::array{0.0, 0.02, 0.1, 0.4, 0.9}[dice.UpTo(4)];
  for (uint32_t p = 0; p < pools; ++p) {
    const uint32_t tokens = world.unit * (powers ? 1u << dice.UpTo(3) : 1 + dice.UpTo(7));
    layout.pools.push_back({fmt::format("p{}", p), tokens, 1, 1, false});
    PoolNeed need{.pool = p};
    const uint32_t kind = dice.UpTo(2);
    if (kind == 1) need.tail_tokens = 1 + dice.UpTo(world.unit * 45);
    if (kind == 2) need.tail_tokens = 1;
    if (dice.Chance(0.2)) need.proof_blocks = 1 + dice.UpTo(1);
    PlainPool plain{.tokens = tokens, .tail = std::nullopt, .proof = need.proof_blocks, .here = {}};
    if (need.tail_tokens > 0) plain.tail = need.tail_tokens;
    for (uint32_t b = 0; b < world.unit_keys * world.unit / tokens; ++b) {
      plain.here.push_back(!dice.Chance(lost));
    }
    world.question.pools.push_back(need);
    world.pools.push_back(plain);
  }
  world.question.step_tokens = world.unit * (1 + dice.UpTo(3));
  world.question.most_tokens = 1 + dice.UpTo(world.unit_keys * world.unit - 1);
  return world;
}

RestorableLengths Ask(const World& world, bool all) {
  std::vector<BlockNeed> needs = NeedsOf(world.spec.layout, world.question, world.unit_keys);
  for (size_t i = 0; i < needs.size(); ++i) {
    if (needs[i].tail > 0) continue;
    const auto& here = world.pools[i].here;
    needs[i].blocks =
        static_cast<uint32_t>(std::find(here.begin(), here.end(), false) - here.begin());
  }
  std::set<std::pair<size_t, uint32_t>> asked;
  return FindRestorable(needs, world.question.step_tokens / world.unit,
                        world.question.most_tokens / world.unit, all,
                        [&](size_t need, uint32_t block) {
                          EXPECT_TRUE(asked.emplace(need, block).second) << "twice";
                          return world.pools[need].here.at(block);
                        });
}

TEST(RestorableLengthsTest, RandomPoolsAgreeWithThePlainRules) {
  size_t with_an_answer = 0, shorter = 0;
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    Dice dice(seed);
    const World world = RandomWorld(dice);
    SCOPED_TRACE(seed);
    ASSERT_OK(CheckQuestion(world.spec.layout, world.question, world.unit_keys));
    const uint32_t step = world.question.step_tokens;
    const std::set<uint64_t> expected = PlainLengths(world.pools, step, world.question.most_tokens);
    const RestorableLengths one = Ask(world, false);
    const RestorableLengths all = Ask(world, true);
    const uint64_t longest = expected.empty() ? 0 : *expected.rbegin();
    ASSERT_EQ(one.longest * world.unit, longest);
    ASSERT_EQ(all.longest * world.unit, longest);
    JointAnswer answer;
    answer.restorable = all.bits;
    std::set<uint64_t> found;
    for (uint64_t length = step; length <= world.question.most_tokens; length += step) {
      if (answer.Restorable(length, step)) found.insert(length);
    }
    ASSERT_EQ(found, expected);
    ASSERT_EQ(answer.restorable.size(), (world.question.most_tokens / step + 7) / 8);
    with_an_answer += longest > 0;
    if (one.lost) {
      ++shorter;
      const PlainPool& pool = world.pools[one.lost->need];
      ASSERT_TRUE(one.lost->block >= pool.here.size() || !pool.here[one.lost->block])
          << "a block that is there is in nobody's way";
    }
    // What the longest length needs is what the rules say.
    const auto needs = NeedsOf(world.spec.layout, world.question, world.unit_keys);
    for (size_t i = 0; longest > 0 && i < needs.size(); ++i) {
      const BlockRange range = NeededOf(needs[i], one.longest);
      PlainPool without_proof = world.pools[i];
      without_proof.proof = 0;
      for (uint32_t b = 0; b < world.pools[i].here.size(); ++b) {
        ASSERT_EQ(PlainNeeds(without_proof, longest, b), b >= range.first && b < range.end);
      }
    }
  }
  EXPECT_GT(with_an_answer, 1500u);
  EXPECT_GT(shorter, 2000u);
}

// Losing more never makes a length restorable that was not.
TEST(RestorableLengthsTest, ALossLeavesASubset) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Dice dice(seed);
    World world = RandomWorld(dice);
    const uint32_t step = world.question.step_tokens;
    const auto lengths = [&] {
      JointAnswer answer;
      answer.restorable = Ask(world, true).bits;
      std::set<uint64_t> found;
      for (uint64_t n = step; n <= world.question.most_tokens; n += step) {
        if (answer.Restorable(n, step)) found.insert(n);
      }
      return found;
    };
    const std::set<uint64_t> before = lengths();
    std::vector<bool>& here =
        world.pools[dice.UpTo(static_cast<uint32_t>(world.pools.size()) - 1)].here;
    if (here.empty()) continue;
    here[dice.UpTo(static_cast<uint32_t>(here.size()) - 1)] = false;
    for (const uint64_t length : lengths()) {
      ASSERT_TRUE(before.contains(length)) << "seed " << seed << " length " << length;
    }
  }
}

// The drawing of the header.
TEST(RestorableLengthsTest, TheLengthsAreASet) {
  const std::vector<BlockNeed> needs = {{.units = 4, .tail = 0, .proof = 0, .blocks = 4},
                                        {.units = 2, .tail = 2, .proof = 0, .blocks = 8},
                                        {.units = 8, .tail = 1, .proof = 0, .blocks = 2}};
  const auto has = [](size_t need, uint32_t block) {
    return need != 1 || (block != 1 && block != 5);
  };
  const auto all = FindRestorable(needs, 1, 16, true, has);
  EXPECT_EQ(all.longest, 16u);
  EXPECT_EQ(all.bits, std::string("\x80\x80", 2));
  EXPECT_FALSE(all.lost);
}

TEST(RestorableLengthsTest, TheBlockInTheWayIsNamed) {
  std::vector<BlockNeed> needs = {{.units = 1, .tail = 0, .proof = 0, .blocks = 7},
                                  {.units = 1, .tail = 1, .proof = 0, .blocks = 9}};
  const auto state_at_5 = [](size_t, uint32_t block) { return block == 4; };
  auto found = FindRestorable(needs, 1, 9, false, state_at_5);
  EXPECT_EQ(found.longest, 5u);
  ASSERT_TRUE(found.lost);
  EXPECT_EQ(found.lost->need, 1u);
  EXPECT_EQ(found.lost->block, 5u) << "the next longer length is 6";
  found = FindRestorable(needs, 1, 9, false, [](size_t, uint32_t) { return true; });
  EXPECT_EQ(found.longest, 7u);
  ASSERT_TRUE(found.lost);
  EXPECT_EQ(found.lost->need, 0u);
  EXPECT_EQ(found.lost->block, 7u);
}

TEST(RestorableLengthsTest, LengthsThatNoPoolCanHaveTakeNoWork) {
  std::vector<BlockNeed> needs;
  for (const uint32_t units : {65535u, 65534u, 65533u, 65531u}) {
    needs.push_back({.units = units, .tail = 1, .proof = 0, .blocks = 1});
  }
  const auto found = FindRestorable(needs, 1, 65536, true, [](size_t, uint32_t) -> bool {
    ADD_FAILURE() << "no length is a multiple of all";
    return true;
  });
  EXPECT_EQ(found.longest, 0u);
  EXPECT_EQ(found.bits.size(), 8192u);
}

NamespaceSpec TwoPools() {
  NamespaceSpec spec;
  spec.layout.block_tokens = 16;
  spec.layout.form = OpaqueLayout{
      .description = "engine", .pools = {{"full", 16, 1, 100, true}, {"state", 32, 1, 100, false}}};
  return spec;
}

TEST(CheckQuestionTest, NamesFieldValueAndExpectation) {
  const Layout layout = TwoPools().layout;
  const JointQuestion good{
      .pools = {{.pool = 0}, {.pool = 1, .tail_tokens = 1}}, .step_tokens = 32, .most_tokens = 160};
  EXPECT_OK(CheckQuestion(layout, good, 10));
  const auto refused = [&](auto&& change, const char* field, const char* got,
                           const char* expected) {
    JointQuestion bad = good;
    change(bad);
    EXPECT_THAT(CheckQuestion(layout, bad, 10),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr(field), HasSubstr(got), HasSubstr(expected))));
  };
  refused([](JointQuestion& q) { q.pools.push_back({}); }, "'pools'", "got 3", "at most");
  refused([](JointQuestion& q) { q.pools.resize(65536); }, "'pools'", "got 65536", "at most");
  refused([](JointQuestion& q) { q.pools[1].pool = 2; }, "'pools[1].pool'", "got 2", "0 to 1");
  refused([](JointQuestion& q) { q.pools[1].pool = 0; }, "'pools[1].pool'", "got 0 twice",
          "differ");
  refused([](JointQuestion& q) { q.pools[0].proof_blocks = 17; }, "'pools[0].proof_blocks'", "17",
          "0 to 16");
  refused([](JointQuestion& q) { q.step_tokens = 24; }, "'step_tokens'", "got 24",
          "multiple of 16");
  refused([](JointQuestion& q) { q.most_tokens = 161; }, "'most_tokens'", "got 161", "160");
  EXPECT_THAT(CheckQuestion(Layout{.form = OpaqueLayout{"d", 1, 1}}, good, 10),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("has no pools")));
}

TEST(CheckQuestionTest, BoundsTheBlocksInAllPools) {
  NamespaceSpec spec = TwoPools();
  auto& pools = std::get<OpaqueLayout>(spec.layout.form).pools;
  pools.clear();
  JointQuestion question;
  for (uint32_t p = 0; p < 5; ++p) {
    pools.push_back({fmt::format("p{}", p), 16, 1, 1, false});
    question.pools.push_back({.pool = p, .tail_tokens = UINT32_MAX});
  }
  EXPECT_THAT(CheckQuestion(spec.layout, question, 65536),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("327680 blocks in 5 pools")));
  question.pools.pop_back();
  EXPECT_OK(CheckQuestion(spec.layout, question, 65536));
}

TEST(NeedsOfTest, TailsAreWholeBlocks) {
  const JointQuestion question{
      .pools = {{.pool = 0, .tail_tokens = 17}, {.pool = 1, .tail_tokens = 32, .proof_blocks = 1}}};
  const auto needs = NeedsOf(TwoPools().layout, question, 5);
  ASSERT_EQ(needs.size(), 2u);
  EXPECT_EQ(needs[0].tail, 2u);
  EXPECT_EQ(needs[0].blocks, 5u);
  EXPECT_EQ(needs[1].units, 2u);
  EXPECT_EQ(needs[1].tail, 1u);
  EXPECT_EQ(needs[1].proof, 1u);
  EXPECT_EQ(needs[1].blocks, 2u);
}

}  // namespace
}  // namespace cairn
