#include "services/cache/cluster/directory/waymarks.h"

#include <gmock/gmock.h>

#include <set>

#include "services/cache/cluster/directory/owners.h"

namespace cairn::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

std::vector<BlockKey> Keys(uint64_t first, size_t count) {
  std::vector<BlockKey> keys(count);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t n = first + i;
    std::memcpy(keys[i].bytes.data(), &n, sizeof(n));
  }
  return keys;
}

TEST(WaymarksTest, AreOneInSoManyBlocks) {
  const Digest ns{};
  for (const auto& [tokens, blocks] :
       {std::pair(16u, 32.0), std::pair(64u, 8.0), std::pair(256u, 2.0), std::pair(512u, 1.0)}) {
    const auto found = WaymarksOf(ns, Keys(0, 32000), tokens);
    EXPECT_NEAR(static_cast<double>(found.size()), 32000 / blocks, 32000 / blocks / 8) << tokens;
  }
}

TEST(WaymarksTest, StayWhatTheyAreWhereverTheBlockStands) {
  Digest ns{};
  const auto all = WaymarksOf(ns, Keys(0, 1000), 64);
  const auto later = WaymarksOf(ns, Keys(500, 500), 64);
  for (const PromptWaymark& waymark : later) {
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const PromptWaymark& other) {
      return other.hash == waymark.hash && other.position == waymark.position + 500;
    }));
  }
  // All nodes must agree, also with those of other versions.
  EXPECT_EQ(HashForWaymark(ns, Keys(7, 1)[0]), HashForWaymark(ns, Keys(7, 1)[0]));
  Digest other{};
  other.bytes[0] = 1;
  EXPECT_NE(HashForWaymark(ns, Keys(7, 1)[0]), HashForWaymark(other, Keys(7, 1)[0]));
}

TEST(WaymarksTest, OfManyTheNextOnesAndTheLastOneAreAsked) {
  std::vector<PromptWaymark> waymarks;
  for (uint32_t i = 0; i < 100; ++i) waymarks.push_back({i, i});
  std::vector<uint32_t> asked;
  for (const PromptWaymark& waymark : WaymarksToAsk(waymarks)) asked.push_back(waymark.position);
  EXPECT_THAT(asked, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 18, 30, 41, 53, 64, 76, 87, 99));
  EXPECT_THAT(WaymarksToAsk(std::span(waymarks).first(16)), SizeIs(16));
  EXPECT_THAT(WaymarksToAsk(std::span(waymarks).first(17)), SizeIs(16));
  EXPECT_THAT(WaymarksToAsk({}), SizeIs(0));
}

std::vector<std::string> Ids(size_t count) {
  std::vector<std::string> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back("node-" + std::to_string(i));
  return ids;
}

TEST(OwnersTest, AreTwoThatDiffer) {
  const OwnerMap one(Ids(1)), two(Ids(2)), many(Ids(20));
  for (WaymarkHash hash = 0; hash < 8000; hash += 8) {
    EXPECT_THAT(one.IdsOf(hash), ElementsAre("node-0"));
    EXPECT_THAT(two.IdsOf(hash), SizeIs(2));
    const auto ids = many.IdsOf(hash);
    ASSERT_THAT(ids, SizeIs(2));
    EXPECT_NE(ids[0], ids[1]);
  }
  EXPECT_THAT(OwnerMap().IdsOf(8), SizeIs(0));
}

TEST(OwnersTest, DoNotDependOnTheOrderOfMembers) {
  auto ids = Ids(9);
  const OwnerMap map(ids);
  std::reverse(ids.begin(), ids.end());
  const OwnerMap reversed(ids);
  for (WaymarkHash hash = 0; hash < 8000; hash += 8) EXPECT_EQ(map.Of(hash), reversed.Of(hash));
}

TEST(OwnersTest, EachMemberOwnsItsShare) {
  constexpr size_t kMembers = 32, kWaymarks = 64000;
  const OwnerMap map(Ids(kMembers));
  std::vector<size_t> owned(kMembers);
  for (uint64_t i = 0; i < kWaymarks; ++i) {
    const Owners owners = map.Of(i * 8 * 0x9e3779b97f4a7c15ull & ~7ull);
    ++owned[owners.first];
    ++owned[owners.second];
  }
  const double mean = 2.0 * kWaymarks / kMembers;
  EXPECT_LT(static_cast<double>(*std::max_element(owned.begin(), owned.end())), 1.1 * mean);
  EXPECT_GT(static_cast<double>(*std::min_element(owned.begin(), owned.end())), 0.9 * mean);
}

TEST(OwnersTest, OneThatLeavesChangesOnlyWhatItOwned) {
  auto ids = Ids(10);
  const OwnerMap before(ids);
  ids.erase(ids.begin() + 3);
  const OwnerMap after(ids);
  for (WaymarkHash hash = 0; hash < 80000; hash += 8) {
    const auto a = before.IdsOf(hash), b = after.IdsOf(hash);
    if (a[0] != "node-3" && a[1] != "node-3") {
      EXPECT_EQ(a, b);
    } else {
      const std::string& stays = a[0] == "node-3" ? a[1] : a[0];
      EXPECT_THAT(b, ::testing::Contains(stays));
    }
  }
}

}  // namespace
}  // namespace cairn::cache
