#include "services/router/index/prefix_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

namespace cairn::router {
namespace {

using Kind = client::MemberEvent::Kind;
using BlockKind = CacheEvent::Kind;

BlockKey Key(uint64_t number) { return Sha256::Of(std::to_string(number)); }
const Digest kSpace = Sha256::Of("namespace");

std::vector<BlockKey> Keys(uint64_t first, uint64_t count) {
  std::vector<BlockKey> keys;
  for (uint64_t i = 0; i < count; ++i) keys.push_back(Key(first + i));
  return keys;
}

class PrefixIndexTest : public testing::Test {
 protected:
  void Mark(Kind kind, const std::string& member) {
    client::MemberEvent event;
    event.kind = kind;
    event.node_id = member;
    index_->Apply(event);
  }
  void Block(const std::string& member, BlockKind kind, const BlockKey& key,
             TierKind tier = TierKind::kHost, std::optional<BlockKey> parent = {},
             const Digest& space = kSpace) {
    client::MemberEvent event;
    event.node_id = member;
    event.event = {.kind = kind, .fingerprint = space, .key = key, .parent = parent, .tier = tier};
    index_->Apply(event);
  }
  // The block's part in layers that need only the last `needed` blocks.
  void Tail(const std::string& member, uint32_t needed, const BlockKey& key, bool held = true) {
    client::MemberEvent event;
    event.node_id = member;
    event.event = {.kind = held ? BlockKind::kTierAdded : BlockKind::kTierRemoved,
                   .fingerprint = kSpace,
                   .key = key};
    index_->Apply(event, needed);
  }
  void Store(const std::string& member, const std::vector<BlockKey>& keys,
             TierKind tier = TierKind::kHost) {
    std::optional<BlockKey> parent;
    for (const BlockKey& key : keys) {
      Block(member, BlockKind::kStored, key, tier, parent);
      parent = key;
    }
  }
  // Blocks and blocks in memory by holder.
  std::map<std::string, std::pair<uint32_t, uint32_t>> Held(const std::vector<BlockKey>& keys) {
    std::map<std::string, std::pair<uint32_t, uint32_t>> held;
    for (const Holder& one : index_->Lookup(kSpace, keys).holders) {
      held[one.id] = {one.blocks, one.memory_blocks};
    }
    return held;
  }

  std::unique_ptr<PrefixIndex> index_ = std::make_unique<PrefixIndex>(PrefixIndex::Options{});
};

using Answer = std::map<std::string, std::pair<uint32_t, uint32_t>>;

TEST_F(PrefixIndexTest, SaysWhoHoldsHowMuchAndWhere) {
  const auto keys = Keys(0, 10);
  Store("n1", Keys(0, 4));
  Store("n2", Keys(0, 7), TierKind::kDisk);
  Block("n2", BlockKind::kTierAdded, Key(1));
  Store("n3", Keys(5, 3));  // Without the beginning it is of no use.
  EXPECT_EQ(Held(keys), (Answer{{"n1", {4, 4}}, {"n2", {7, 1}}}));
  EXPECT_EQ(index_->Lookup(kSpace, keys).any_blocks, 8u);
  EXPECT_EQ(index_->Lookup(kSpace, keys).holders[0].id, "n2");
}

TEST_F(PrefixIndexTest, ABlockIsGoneWhenItLeftItsLastTier) {
  Store("n1", Keys(0, 3));
  Block("n1", BlockKind::kTierAdded, Key(1), TierKind::kDisk);
  Block("n1", BlockKind::kTierRemoved, Key(1), TierKind::kHost);
  EXPECT_EQ(Held(Keys(0, 3)), (Answer{{"n1", {3, 2}}}));
  Block("n1", BlockKind::kTierRemoved, Key(1), TierKind::kDisk);
  EXPECT_EQ(Held(Keys(0, 3)), (Answer{{"n1", {1, 1}}}));
  Block("n1", BlockKind::kRemoved, Key(0));
  EXPECT_EQ(Held(Keys(0, 3)), Answer{});
}

TEST_F(PrefixIndexTest, DeviceAndHostAreBothMemory) {
  Store("n1", Keys(0, 2));
  Block("n1", BlockKind::kTierAdded, Key(0), TierKind::kDevice);
  Block("n1", BlockKind::kTierRemoved, Key(0), TierKind::kHost);
  EXPECT_EQ(Held(Keys(0, 2)), (Answer{{"n1", {2, 2}}}));
}

TEST_F(PrefixIndexTest, WhatASnapshotNoLongerHasIsForgottenAtItsEnd) {
  Store("n1", Keys(0, 4));
  Mark(Kind::kSnapshotBegins, "n1");
  Store("n1", Keys(0, 2));
  EXPECT_EQ(Held(Keys(0, 4)), (Answer{{"n1", {4, 4}}}));
  Mark(Kind::kSnapshotEnds, "n1");
  EXPECT_EQ(Held(Keys(0, 4)), (Answer{{"n1", {2, 2}}}));
}

TEST_F(PrefixIndexTest, ASnapshotThatBeginsAgainForgetsItsFirstHalf) {
  Store("n1", Keys(0, 4));
  Mark(Kind::kSnapshotBegins, "n1");
  Store("n1", Keys(10, 4));
  Mark(Kind::kSnapshotBegins, "n1");
  EXPECT_EQ(Held(Keys(0, 4)), (Answer{{"n1", {4, 4}}}));
  EXPECT_EQ(Held(Keys(10, 4)), Answer{});
  Store("n1", Keys(20, 1));
  Mark(Kind::kSnapshotEnds, "n1");
  EXPECT_EQ(Held(Keys(0, 4)), Answer{});
  EXPECT_EQ(Held(Keys(20, 1)), (Answer{{"n1", {1, 1}}}));
}

TEST_F(PrefixIndexTest, ALostMemberIsGoneAtOnceAndItsEntriesSoon) {
  Store("n1", Keys(0, 1000));
  Store("n2", Keys(0, 10));
  Mark(Kind::kMemberLost, "n1");
  EXPECT_EQ(Held(Keys(0, 1000)), (Answer{{"n2", {10, 10}}}));
  EXPECT_EQ(index_->numbers().members, 1u);
  for (int i = 0; i < 20; ++i) Block("n2", BlockKind::kStored, Key(0));
  EXPECT_EQ(index_->numbers().entries, 10u);
}

TEST_F(PrefixIndexTest, ADroppedNamespaceIsGoneAtThatMemberAlone) {
  const Digest other = Sha256::Of("other");
  Store("n1", Keys(0, 2));
  Store("n2", Keys(0, 2));
  Block("n1", BlockKind::kStored, Key(0), TierKind::kHost, {}, other);
  Block("n1", BlockKind::kNamespaceDropped, {});
  EXPECT_EQ(Held(Keys(0, 2)), (Answer{{"n2", {2, 2}}}));
  EXPECT_EQ(index_->Lookup(other, Keys(0, 2)).any_blocks, 1u);
}

TEST_F(PrefixIndexTest, KeysOfOneNamespaceAreNotThoseOfAnother) {
  Store("n1", Keys(0, 2));
  EXPECT_TRUE(index_->Lookup(Sha256::Of("other"), Keys(0, 2)).holders.empty());
}

TEST_F(PrefixIndexTest, StaysWithinItsBytesAndKeepsWhatWasUsedLast) {
  constexpr size_t kBytes = 64 << 10;
  index_ = std::make_unique<PrefixIndex>(PrefixIndex::Options{.max_bytes = kBytes});
  Store("n1", Keys(0, 100));
  for (uint64_t i = 0; i < 200; ++i) {
    Store("n1", Keys(1000 + 100 * i, 100));
    if (i % 5 == 0) {
      EXPECT_EQ(Held(Keys(0, 100)), (Answer{{"n1", {100, 100}}}));
    }
  }
  EXPECT_LE(index_->numbers().bytes, kBytes);
  EXPECT_GT(index_->numbers().entries, 1000u);
  EXPECT_EQ(index_->numbers().entries + index_->numbers().evicted, 100u + 200u * 100u);
  EXPECT_EQ(Held(Keys(1000, 100)), Answer{});
}

TEST_F(PrefixIndexTest, TheEndOfAPromptLeavesBeforeItsBeginning) {
  index_ = std::make_unique<PrefixIndex>(PrefixIndex::Options{.max_bytes = 8 << 10});
  Store("n1", Keys(0, 100));
  const uint64_t capacity = [&] {
    for (uint64_t i = 0; i < 1000; ++i) Block("n2", BlockKind::kStored, Key(10'000 + i));
    return index_->numbers().entries;
  }();
  index_ = std::make_unique<PrefixIndex>(PrefixIndex::Options{.max_bytes = 8 << 10});
  Store("n1", Keys(0, 100));
  for (uint64_t i = 0; i < capacity - 60; ++i) Block("n2", BlockKind::kStored, Key(10'000 + i));
  EXPECT_EQ(Held(Keys(0, 100)), (Answer{{"n1", {60, 60}}}));
}

TEST_F(PrefixIndexTest, RemembersWhatWasSentToAWorker) {
  index_->Sent("host:1", kSpace, Keys(0, 5));
  const HeldPrefix held = index_->Lookup(kSpace, Keys(0, 9));
  ASSERT_EQ(held.holders.size(), 1u);
  EXPECT_EQ(held.holders[0].id, "host:1");
  EXPECT_TRUE(held.holders[0].approximate);
  EXPECT_EQ(held.holders[0].blocks, 5u);
  EXPECT_EQ(held.any_blocks, 0u);  // Nobody else can fetch it.
  index_->Forget("host:1");
  EXPECT_EQ(Held(Keys(0, 5)), Answer{});
}

TEST_F(PrefixIndexTest, ForgetsWhatWasSentBeforeTheWorkersRoom) {
  index_ = std::make_unique<PrefixIndex>(PrefixIndex::Options{.sent_blocks = 100});
  index_->Sent("w", kSpace, Keys(0, 10));
  for (uint64_t i = 1; i < 6; ++i) index_->Sent("w", kSpace, Keys(1000 * i, 10));
  EXPECT_EQ(Held(Keys(0, 10)), (Answer{{"w", {10, 10}}}));
  for (uint64_t i = 6; i < 16; ++i) index_->Sent("w", kSpace, Keys(1000 * i, 10));
  EXPECT_EQ(Held(Keys(0, 10)), Answer{});
  EXPECT_EQ(Held(Keys(15'000, 10)), (Answer{{"w", {10, 10}}}));
}

TEST_F(PrefixIndexTest, SurvivesEventsThatMakeNoSense) {
  Block("n1", static_cast<BlockKind>(200), Key(0));
  Block("n1", BlockKind::kStored, Key(0), static_cast<TierKind>(77));
  Block("n1", BlockKind::kTierRemoved, Key(0), static_cast<TierKind>(77));
  Block("", BlockKind::kStored, Key(0));
  Block(std::string(10'000, 'x'), BlockKind::kStored, Key(0));
  Mark(static_cast<Kind>(99), "n1");
  EXPECT_EQ(index_->numbers().ignored, 6u);
  Block("n1", BlockKind::kRemoved, Key(5));
  Mark(Kind::kSnapshotEnds, "n9");
  Mark(Kind::kMemberLost, "n8");
  Block("n1", BlockKind::kStored, Key(1), TierKind::kHost, Key(1));  // Its own parent.
  Block("n1", BlockKind::kStored, Key(1), TierKind::kHost, Key(1));
  EXPECT_EQ(Held(Keys(1, 1)), (Answer{{"n1", {1, 1}}}));
}

TEST_F(PrefixIndexTest, ManyMembersAndNamespacesFindAnEnd) {
  for (int i = 0; i < 2000; ++i) {
    Block("n" + std::to_string(i), BlockKind::kStored, Key(0));
    Block("n0", BlockKind::kStored, Key(0), TierKind::kHost, {},
          Sha256::Of("space" + std::to_string(i)));
  }
  EXPECT_LE(index_->numbers().members, 1024u);
  EXPECT_LE(index_->numbers().namespaces, 1024u);
  EXPECT_GT(index_->numbers().ignored, 0u);
  // There is room again for others when members leave.
  for (int i = 0; i < 2000; ++i) Mark(Kind::kMemberLost, "n" + std::to_string(i));
  Store("late", Keys(0, 3));
  EXPECT_EQ(Held(Keys(0, 3)), (Answer{{"late", {3, 3}}}));
}

TEST_F(PrefixIndexTest, AHolderWithTailsEndsWhereItHasThem) {
  Store("n1", Keys(0, 6));
  Store("n1", Keys(0, 4), TierKind::kDisk);
  Store("n2", Keys(0, 6));
  Block("n1", BlockKind::kTierRemoved, Key(3));
  Tail("n1", 2, Key(3));
  EXPECT_EQ(Held(Keys(0, 6)), (Answer{{"n2", {6, 6}}}));
  Tail("n1", 2, Key(2));
  EXPECT_EQ(Held(Keys(0, 6)), (Answer{{"n1", {4, 3}}, {"n2", {6, 6}}}));
  EXPECT_EQ(Held(Keys(0, 3)), (Answer{{"n2", {3, 3}}}));
  // A second kind must be there, too.
  Tail("n1", 1, Key(0));
  EXPECT_EQ(Held(Keys(0, 6)), (Answer{{"n2", {6, 6}}}));
  Tail("n1", 2, Key(0));
  EXPECT_EQ(Held(Keys(0, 6)), (Answer{{"n1", {1, 1}}, {"n2", {6, 6}}}));
  Tail("n1", 1, Key(3));
  EXPECT_EQ(Held(Keys(0, 6)), (Answer{{"n1", {4, 3}}, {"n2", {6, 6}}}));
  const HeldPrefix held = index_->LookupTiers(kSpace, Keys(0, 6));
  ASSERT_EQ(held.holders.size(), 2u);
  EXPECT_EQ(held.holders[1].tier_blocks, (ByTier<uint32_t>{{3, 4, 0}}));
  Tail("n1", 1, Key(3), false);
  EXPECT_EQ(Held(Keys(0, 6)), (Answer{{"n1", {1, 1}}, {"n2", {6, 6}}}));
  // A removal means all of the block.
  Block("n1", BlockKind::kRemoved, Key(0));
  EXPECT_EQ(Held(Keys(0, 6)), (Answer{{"n2", {6, 6}}}));
}

TEST_F(PrefixIndexTest, TailsHaveBoundsAndLeaveWithTheirHolder) {
  Store("n1", Keys(0, 3));
  for (uint32_t needed = 1; needed <= 9; ++needed) Tail("n1", needed, Key(2));
  EXPECT_EQ(index_->numbers().ignored, 5u);
  for (int round = 0; round < 200; ++round) {
    // No bit is lost.
    Mark(Kind::kSnapshotBegins, "n1");
    Store("n1", Keys(0, 3));
    for (uint32_t needed = 1; needed <= 3; ++needed) Tail("n1", needed, Key(0));
    Mark(Kind::kSnapshotEnds, "n1");
    ASSERT_EQ(Held(Keys(0, 3)), (Answer{{"n1", {1, 1}}}));
  }
  EXPECT_EQ(index_->numbers().ignored, 5u);
  Mark(Kind::kMemberLost, "n1");
  EXPECT_EQ(Held(Keys(0, 3)), Answer{});
  Store("n1", Keys(0, 3));
  EXPECT_EQ(Held(Keys(0, 3)), (Answer{{"n1", {3, 3}}}));
}

// Against sets that do the same without any trick.
TEST_F(PrefixIndexTest, AnswersAsAPlainModelWhileEverythingFits) {
  using Place = std::tuple<std::string, uint64_t, TierKind>;
  std::mt19937_64 random(3);
  const auto whole = [&](uint64_t n) { return random() % n; };
  std::set<Place> now, old;
  std::set<std::string> in_snapshot;
  for (int step = 0; step < 20'000; ++step) {
    const std::string member = "n" + std::to_string(whole(3));
    const uint64_t block = whole(12);
    const auto tier = static_cast<TierKind>(whole(kTierCount));
    const auto drop = [&](std::set<Place>* places, auto which) { std::erase_if(*places, which); };
    switch (whole(20)) {
      case 0: {
        if (!in_snapshot.insert(member).second) {
          drop(&now, [&](const Place& p) { return std::get<0>(p) == member; });
          Mark(Kind::kSnapshotBegins, member);
          break;
        }
        for (const Place& place : now) {
          if (std::get<0>(place) == member) old.insert(place);
        }
        drop(&now, [&](const Place& p) { return std::get<0>(p) == member; });
        Mark(Kind::kSnapshotBegins, member);
        break;
      }
      case 1:
        in_snapshot.erase(member);
        drop(&old, [&](const Place& p) { return std::get<0>(p) == member; });
        Mark(Kind::kSnapshotEnds, member);
        break;
      case 2:
        if (whole(5) != 0) break;
        in_snapshot.erase(member);
        for (auto* places : {&now, &old}) {
          drop(places, [&](const Place& p) { return std::get<0>(p) == member; });
        }
        Mark(Kind::kMemberLost, member);
        break;
      case 3:
        for (auto* places : {&now, &old}) {
          drop(places,
               [&](const Place& p) { return std::get<0>(p) == member && std::get<1>(p) == block; });
        }
        Block(member, BlockKind::kRemoved, Key(block));
        break;
      case 4:
      case 5:
      case 6:
        for (auto* places : {&now, &old}) places->erase({member, block, tier});
        Block(member, BlockKind::kTierRemoved, Key(block), tier);
        break;
      default:
        now.insert({member, block, tier});
        Block(member, BlockKind::kStored, Key(block), tier);
    }
    Answer expected;
    for (const char* name : {"n0", "n1", "n2"}) {
      uint32_t blocks = 0, memory = 0;
      for (; blocks < 12; ++blocks) {
        const auto has = [&](TierKind in) {
          return now.contains({name, blocks, in}) || old.contains({name, blocks, in});
        };
        const bool in_memory = has(TierKind::kHost) || has(TierKind::kDevice);
        if (!in_memory && !has(TierKind::kDisk)) break;
        memory += in_memory ? 1 : 0;
      }
      if (blocks > 0) expected[name] = {blocks, memory};
    }
    ASSERT_EQ(Held(Keys(0, 12)), expected) << "step " << step;
  }
}

TEST_F(PrefixIndexTest, LookupTiersSaysWhereTheBlocksAre) {
  const auto keys = Keys(0, 4);
  Store("a", keys, TierKind::kDisk);
  Store("a", Keys(0, 3), TierKind::kHost);
  Store("a", Keys(1, 1), TierKind::kDevice);
  // Behind a gap: no part of the prefix.
  Store("b", Keys(2, 2), TierKind::kHost);
  index_->Sent("worker:1", kSpace, keys);
  const HeldPrefix held = index_->LookupTiers(kSpace, keys);
  ASSERT_EQ(held.holders.size(), 2u);
  for (const Holder& holder : held.holders) {
    EXPECT_EQ(holder.blocks, 4u);
    const ByTier<uint32_t> expected =
        holder.approximate ? ByTier<uint32_t>{} : ByTier<uint32_t>{{3, 4, 1}};
    EXPECT_EQ(holder.tier_blocks, expected) << holder.id;
  }
  EXPECT_EQ(index_->Lookup(kSpace, keys).holders[0].tier_blocks, ByTier<uint32_t>{});
}

}  // namespace
}  // namespace cairn::router
