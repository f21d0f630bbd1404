// Random operations on the index against a naive model, replayable by seed.

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "services/cache/store/index/block_index.h"
#include "tests/unit/cache/store/index/index_fixture.h"

namespace cairn::cache {
namespace {

using testing::KeyOf;
using testing::kWhole;
using testing::OnePart;

constexpr uint64_t kBlocks = 120;

// Block n's parent, as a random tree.
std::optional<uint64_t> ParentOf(uint64_t n, uint64_t seed) {
  if (n % 17 == 0) return std::nullopt;
  std::mt19937_64 rng(n * 31 + seed);
  return rng() % 3 == 0 ? n - 1 - rng() % (n % 17) : n - 1;
}

class Model : public ::testing::TestWithParam<uint64_t> {
 protected:
  std::vector<uint64_t> PathTo(uint64_t n) const {
    std::vector<uint64_t> path;
    for (std::optional<uint64_t> at = n; at; at = ParentOf(*at, GetParam()))
      path.insert(path.begin(), *at);
    return path;
  }
  bool IsAbove(uint64_t n, uint64_t below) const {
    const auto path = PathTo(below);
    return std::find(path.begin(), path.end(), n) != path.end();
  }
};

// Long: one random walk; each branch is one step of it.
TEST_P(Model, AgreesWithANaiveTree) {
  const uint64_t seed = GetParam();
  std::mt19937_64 rng(seed);
  BlockIndex index(kWhole, nullptr, seed);
  struct Block {
    ByTier<bool> in;
    uint32_t last_use = 0;
    bool alive() const { return in != ByTier<bool>(); }
  };
  std::map<uint64_t, Block> model;  // Living blocks.
  std::map<PinId, uint64_t> pins;
  size_t given = 0, expected_back = 0;
  ReleaseList released;
  uint32_t now = 1;

  for (int step = 0; step < 4000; ++step) {
    SCOPED_TRACE("seed " + std::to_string(seed) + " step " + std::to_string(step));
    const uint64_t n = rng() % kBlocks;
    const size_t t = rng() % kTierCount;
    const TierKind tier = static_cast<TierKind>(t);
    ++now;
    switch (rng() % 9) {
      case 0:
      case 1: {
        const auto parent = ParentOf(n, seed);
        const bool inserted = index.Insert(
            KeyOf(n), parent && rng() % 4 != 0 ? std::optional(KeyOf(*parent)) : std::nullopt,
            OnePart(n), tier, 0, now);
        ASSERT_EQ(inserted, !model.contains(n));
        if (inserted) {
          model[n].in[t] = true;
          model[n].last_use = now;
          ++given;
        }
        break;
      }
      case 2: {
        const auto it = model.find(n);
        if (it == model.end() || it->second.in[t]) break;
        const Extent extent{n, 100};
        index.AddToTier(*index.Find(KeyOf(n)), tier, {&extent, 1});
        it->second.in[t] = true;
        ++given;
        break;
      }
      case 3: {
        const auto it = model.find(n);
        if (it == model.end() || !it->second.in[t]) break;
        it->second.in[t] = false;
        const bool gone = !it->second.alive();
        ASSERT_EQ(index.RemoveFromTier(*index.Find(KeyOf(n)), tier, &released), gone);
        if (gone) model.erase(it);
        ++expected_back;
        break;
      }
      case 4: {
        const auto path = PathTo(n);
        std::vector<BlockKey> keys;
        for (uint64_t p : path) keys.push_back(KeyOf(p));
        const auto walk = index.Match(keys, now, true);
        size_t expected = 0;
        while (expected < path.size() && model.contains(path[expected])) ++expected;
        ASSERT_EQ(walk.matched, expected);
        for (size_t i = 0; i < expected; ++i) model[path[i]].last_use = now;
        size_t in_runs = 0;
        for (const auto& run : walk.runs) {
          for (uint32_t i = 0; i < run.blocks; ++i) {
            const auto& in = model[path[in_runs++]].in;
            ASSERT_EQ(run.tier, *std::find_if(kTiersByRank.begin(), kTiersByRank.end(),
                                              [&](TierKind kind) { return in[kind]; }));
          }
        }
        ASSERT_EQ(in_runs, expected);
        size_t in_segments = 0;
        for (const auto& segment : walk.path_runs) in_segments += segment.count;
        ASSERT_EQ(in_segments, expected);
        break;
      }
      case 5: {
        if (!model.contains(n)) break;
        const PinKind kind = rng() % 2 == 0 ? PinKind::kPlace : PinKind::kLease;
        const PinId pin = index.PinBlock(*index.Find(KeyOf(n)), kind);
        ASSERT_EQ(PinTable::KindOf(pin), kind);
        pins.emplace(pin, n);
        break;
      }
      case 6: {
        if (pins.empty()) break;
        auto it = std::next(pins.begin(), static_cast<ptrdiff_t>(rng() % pins.size()));
        ASSERT_EQ(index.KeyAt(index.PinnedBlock(it->first)), KeyOf(it->second));
        index.Unpin(it->first, &released);
        pins.erase(it);
        break;
      }
      case 7: {
        const auto evicted = index.EvictOne(tier, &released);
        if (!evicted) break;
        ++expected_back;
        uint64_t victim = kBlocks;
        for (const auto& [number, block] : model) {
          if (KeyOf(number) == evicted->key) victim = number;
        }
        ASSERT_NE(victim, kBlocks);
        ASSERT_TRUE(model[victim].in[t]);
        // Links that the index was told of: every descendant in its tree must be gone from this
        // tier. The naive tree may know links that the index does not, so ask the index.
        for (const auto& [number, block] : model) {
          if (number == victim || !block.in[t]) continue;
          for (auto ref = index.Find(KeyOf(number)); ref;) {
            const auto parent = index.ParentOf(*ref);
            ASSERT_FALSE(parent == evicted->key)
                << number << " was left in the tier below " << victim;
            ref = parent ? index.Find(*parent) : std::nullopt;
          }
        }
        model[victim].in[t] = false;
        // A pin keeps its block and all above it, as the index knows them: places everywhere, a
        // lease in the slowest tier.
        bool slower = false;
        for (const TierKind other : kTiersByRank) {
          slower |= Faster(tier, other) && model[victim].in[other];
        }
        for (const auto& [pin, number] : pins) {
          if (PinTable::KindOf(pin) == PinKind::kLease && slower) continue;
          for (auto ref = index.Find(KeyOf(number)); ref;) {
            ASSERT_NE(index.KeyAt(*ref), evicted->key) << number;
            const auto parent = index.ParentOf(*ref);
            ref = parent ? index.Find(*parent) : std::nullopt;
          }
        }
        if (!model[victim].alive()) {
          ASSERT_TRUE(evicted->gone);
          model.erase(victim);
        }
        break;
      }
      case 8: {
        const auto it = model.find(n);
        if (it == model.end() || !it->second.in[t]) break;
        const BlockRef ref = *index.Find(KeyOf(n));
        const bool pinned = index.IsPinned(ref);
        ASSERT_EQ(index.FindPinnedPaths().Covers(ref), pinned);
        if (pinned) break;
        const PartPlaces before = index.PartsOf(ref);
        const Extent elsewhere{n + (uint64_t{1} << 32) * static_cast<uint64_t>(step), 100};
        index.Relocate(ref, tier, {&elsewhere, 1}, &released);
        ASSERT_EQ(released.back().extent, before[0].In(tier));
        ASSERT_EQ(index.PartsOf(ref)[0].In(tier), elsewhere);
        ++given;
        ++expected_back;
        break;
      }
    }
    ASSERT_TRUE(index.CheckInvariants());
    ASSERT_EQ(index.blocks(), model.size());
    if (step % 500 == 499) {
      index.Compact();
      ASSERT_TRUE(index.CheckInvariants());
    }
  }
  while (!pins.empty()) {
    index.Unpin(pins.begin()->first, &released);
    pins.erase(pins.begin());
  }
  ASSERT_TRUE(index.CheckInvariants());
  EXPECT_EQ(released.size(), expected_back);
  for (size_t t = 0; t < kTierCount; ++t) {
    while (index.EvictOne(static_cast<TierKind>(t), &released)) {
    }
  }
  EXPECT_EQ(released.size(), given);
  EXPECT_EQ(index.blocks(), 0u);
  EXPECT_EQ(index.nodes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Model, ::testing::Range<uint64_t>(1, 13));

}  // namespace
}  // namespace cairn::cache
