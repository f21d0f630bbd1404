#include "services/cache/store/tier/segment_owners.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>

#include "common/status/matchers.h"

namespace cairn::cache {
namespace {

using Freshness = SegmentOwners::Freshness;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kSegment = 4 * kHostPageBytes;

class FakeMemories final : public SegmentMemories {
 public:
  bool IsThere(uint32_t index) const override { return !lost.contains(index); }
  bool CanReplace(uint32_t index, bool lent) override { return lent || !held.contains(index); }
  bool IsStuck(uint32_t index) const override { return held.contains(index); }
  Status Seal(const SegmentPlace& place) override {
    EXPECT_TRUE(sealed.insert(place.id).second) << "sealed twice";
    return OkStatus();
  }
  Result<int> Open(uint32_t index) override { return static_cast<int>(index); }

  std::set<uint32_t> lost;    // Segments that have no memory.
  std::set<uint32_t> held;    // Others map them, and there is no room for what is replaced.
  std::set<uint32_t> sealed;  // Ids.
};

class SegmentOwnersTest : public ::testing::Test {
 protected:
  std::optional<Extent> Take(OwnerId owner, Lending lending = Lending::kSealed) {
    RoomFor room{owner, lending};
    return owners_.Take(&room, kHostPageBytes).extent;
  }
  // As the tier: takes an empty segment if that helps.
  std::optional<Extent> TakeOrClaim(OwnerId owner, Lending lending = Lending::kSealed) {
    if (const auto extent = Take(owner, lending)) return extent;
    const RoomFor room{owner, lending};
    const auto claim = owners_.BeginClaim(room);
    if (!claim) return std::nullopt;
    if (claim->freshness != Freshness::kAsItIs) owners_.EndClaim(*claim, room, /*fresh=*/true);
    return Take(owner, lending);
  }

  FakeMemories memories_;
  SegmentOwners owners_{SegmentGrid(4 * kSegment, kSegment), 2, &memories_};
};

TEST_F(SegmentOwnersTest, AllIsCommonUntilThereIsAnOwner) {
  RoomFor room{};
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(owners_.Take(&room, kHostPageBytes).extent);
  const auto full = owners_.Take(&room, kHostPageBytes);
  EXPECT_FALSE(full.extent);
  EXPECT_FALSE(full.may_claim);
  EXPECT_EQ(owners_.GetStats().used_bytes, 4 * kSegment);
}

TEST_F(SegmentOwnersTest, UntouchedSegmentsGoAsTheyAreAndUsedOnesArePunched) {
  const Extent common = *Take(kCommon);
  const OwnerId a = *owners_.AddOwner("a");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(owners_.BeginClaim({a})->freshness, Freshness::kAsItIs);
  EXPECT_FALSE(owners_.BeginClaim({a}));
  owners_.Release(common);
  EXPECT_EQ(owners_.BeginClaim({a})->freshness, Freshness::kPunch);
}

TEST_F(SegmentOwnersTest, NobodyGetsRoomInASegmentThatChangesHands) {
  owners_.Release(*Take(kCommon));
  const OwnerId a = *owners_.AddOwner("a");
  for (int i = 0; i < 12; ++i) ASSERT_TRUE(TakeOrClaim(a));
  const auto claim = owners_.BeginClaim({a, Lending::kLent});
  ASSERT_TRUE(claim);
  EXPECT_FALSE(Take(kCommon));
  EXPECT_FALSE(Take(a, Lending::kLent));
  owners_.EndClaim(*claim, {a, Lending::kLent}, /*fresh=*/false);
  EXPECT_FALSE(Take(a, Lending::kLent));
}

TEST_F(SegmentOwnersTest, WhatWasHandedOutIsReplacedAndThenHasAnotherId) {
  const OwnerId a = *owners_.AddOwner("a"), b = *owners_.AddOwner("b");
  const Extent extent = *TakeOrClaim(a);
  const SegmentPlace place = owners_.PlaceOf(extent.id);
  ASSERT_OK(owners_.Share(place.index, place.id, a));
  ASSERT_OK(owners_.Share(place.index, place.id, a));
  EXPECT_EQ(owners_.Share(place.index, place.id, b).status().code(), StatusCode::kNotFound);
  owners_.Release(extent);
  for (int i = 0; i < 3; ++i) owners_.BeginClaim({b});
  memories_.held.insert(place.index);
  EXPECT_FALSE(owners_.BeginClaim({b}));
  memories_.held.clear();
  const auto claim = owners_.BeginClaim({b});
  ASSERT_TRUE(claim);
  EXPECT_EQ(claim->freshness, Freshness::kReplace);
  owners_.EndClaim(*claim, {b}, /*fresh=*/true);
  EXPECT_FALSE(owners_.IsCurrent(place.index, place.id, a));
  EXPECT_NE(owners_.PlaceOf(extent.id).id, place.id);
}

TEST_F(SegmentOwnersTest, ANameWithoutUsersMakesPlaceForANewOne) {
  const OwnerId a = *owners_.AddOwner("a");
  ASSERT_OK(owners_.AddOwner("b"));
  EXPECT_EQ(owners_.AddOwner("c").status().code(), StatusCode::kResourceExhausted);
  TakeOrClaim(a);
  owners_.RemoveOwner(a);
  EXPECT_EQ(owners_.FindOwner("a"), a);  // It has blocks.
  const uint32_t version = owners_.version();
  ASSERT_OK(owners_.AddOwner("c"));
  EXPECT_EQ(owners_.FindOwner("a"), kCommon);
  EXPECT_NE(owners_.version(), version);
  EXPECT_NE(*owners_.AddOwner("b"), a);
}

TEST_F(SegmentOwnersTest, ADrainedSegmentIsForOneOwnerAlone) {
  const OwnerId a = *owners_.AddOwner("a"), b = *owners_.AddOwner("b");
  std::vector<Extent> of_a;
  while (const auto extent = TakeOrClaim(a)) of_a.push_back(*extent);
  EXPECT_TRUE(owners_.HasLessThanItsShare({b}));
  EXPECT_FALSE(owners_.HasLessThanItsShare({a}));
  const uint32_t index = owners_.DrainCandidates({b}).at(0);
  ASSERT_TRUE(owners_.BeginDrain(index, {b}));
  EXPECT_FALSE(owners_.BeginDrain(index + 1, {b}));
  for (const Extent& extent : of_a) {
    if (owners_.PlaceOf(extent.id).index == index) owners_.Release(extent);
  }
  EXPECT_FALSE(TakeOrClaim(a));
  EXPECT_TRUE(owners_.EndDrain());
  EXPECT_FALSE(TakeOrClaim(a));
  const auto extent = TakeOrClaim(b);
  ASSERT_TRUE(extent);
  EXPECT_EQ(owners_.PlaceOf(extent->id).index, index);
  EXPECT_FALSE(owners_.BeginDrain(index, {a}) && owners_.EndDrain());
}

TEST_F(SegmentOwnersTest, SegmentsThatCannotBeReplacedAreNotDrained) {
  const OwnerId a = *owners_.AddOwner("a"), b = *owners_.AddOwner("b");
  while (TakeOrClaim(a)) {
  }
  for (const SegmentPlace& place : owners_.SegmentsOf(a)) {
    ASSERT_OK(owners_.Share(place.index, place.id, a));
    if (place.index != 2) memories_.held.insert(place.index);
  }
  EXPECT_THAT(owners_.DrainCandidates({b}), ElementsAre(2));
  memories_.held.insert(2);
  EXPECT_THAT(owners_.DrainCandidates({b}), IsEmpty());
}

// Random steps against a model that knows whose bytes a memory may hold, and who was shown it.
class SegmentOwnersModel {
 public:
  explicit SegmentOwnersModel(unsigned seed) : random_(seed), memory_(kSegments) {}

  void Run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      Step();
      owners_.CheckConsistency();
      uint64_t bytes = 0;
      for (const auto& [id, taken] : taken_) bytes += taken.length;
      ASSERT_EQ(owners_.GetStats().asked_bytes, bytes);
      ASSERT_EQ(owners_.GetStats().extents, taken_.size());
    }
  }

 private:
  static constexpr uint32_t kSegments = 7;  // The last one is smaller, and the size is odd.
  static constexpr uint64_t kBytes = 3 * kHostPageBytes;
  struct Memory {
    std::set<OwnerId> wrote;  // Since it was fresh.
    std::set<OwnerId> shown;  // Since it has this memory.
    size_t extents = 0;
    bool changes = false;
    bool drains = false;
  };

  unsigned Random(unsigned n) { return static_cast<unsigned>(random_() % n); }
  OwnerId SomeOwner() {
    if (users_.empty() || Random(4) == 0) return kCommon;
    return std::next(users_.begin(), Random(static_cast<unsigned>(users_.size())))->first;
  }
  RoomFor SomeRoom() { return {SomeOwner(), Random(3) == 0 ? Lending::kLent : Lending::kSealed}; }

  void Step() {
    switch (Random(9)) {
      case 0: {
        const auto owner = owners_.AddOwner(std::string(1, static_cast<char>('a' + Random(5))));
        if (owner.ok()) ++users_[*owner];
        return;
      }
      case 1:
        if (const OwnerId owner = SomeOwner(); owner != kCommon) {
          owners_.RemoveOwner(owner);
          if (--users_[owner] == 0) users_.erase(owner);
        }
        return;
      case 2:
      case 3:
        return TakeOne();
      case 4:
        return ReleaseOne();
      case 5:
        return Claim();
      case 6:
        return Share();
      case 7:
        return Drain();
      default: {
        const uint32_t index = Random(kSegments);
        if (!memories_.held.erase(index)) memories_.held.insert(index);
      }
    }
  }
  void TakeOne() {
    RoomFor room = SomeRoom();
    const OwnerId wanted = room.owner;
    const auto length = static_cast<uint32_t>(1 + Random(kBytes));
    auto extent = owners_.Take(&room, length).extent;
    if (!extent && Random(2) == 0) extent = owners_.TakeElsewhere(room, length);
    if (!extent) return;
    const SegmentPlace place = owners_.PlaceOf(extent->id);
    Memory& memory = memory_[place.index];
    EXPECT_FALSE(memory.changes || memory.drains);
    EXPECT_TRUE(place.owner == kCommon || place.owner == wanted);
    EXPECT_TRUE(room.lending == Lending::kSealed || place.lending == Lending::kLent);
    memory.wrote.insert(wanted);
    ++memory.extents;
    for (const OwnerId shown : memory.shown) EXPECT_EQ(shown, wanted);
    EXPECT_TRUE(taken_.emplace(extent->id, *extent).second);
  }
  void ReleaseOne() {
    if (taken_.empty()) return;
    const auto it = std::next(taken_.begin(), Random(static_cast<unsigned>(taken_.size())));
    --memory_[owners_.PlaceOf(it->first).index].extents;
    owners_.Release(it->second);
    taken_.erase(it);
  }
  void Claim() {
    if (claim_) {
      Memory& memory = memory_[claim_->first.index];
      const bool fresh = Random(4) != 0;
      if (fresh) memory.wrote.clear();
      if (fresh && claim_->first.freshness == Freshness::kReplace) memory.shown.clear();
      EXPECT_TRUE(!fresh || memory.shown.empty()) << "punched, but shown to others";
      memory.changes = false;
      owners_.EndClaim(claim_->first, claim_->second, fresh);
      claim_.reset();
      return;
    }
    const RoomFor room = SomeRoom();
    const auto claim = owners_.BeginClaim(room);
    if (!claim) return;
    Memory& memory = memory_[claim->index];
    EXPECT_EQ(memory.extents, 0u);
    EXPECT_FALSE(memory.changes);
    if (claim->freshness == Freshness::kAsItIs) {
      const OwnerId owner = owners_.PlaceOf(claim->index * kBytes).owner;
      EXPECT_TRUE(owner != kCommon || memory.shown.empty());
      for (const OwnerId wrote : memory.wrote) EXPECT_TRUE(owner == kCommon || wrote == owner);
      return;
    }
    if (claim->freshness == Freshness::kReplace && !claim->lent_before) {
      EXPECT_FALSE(memories_.held.contains(claim->index));
    }
    memory.changes = true;
    claim_.emplace(*claim, room);
  }
  void Share() {
    const uint32_t index = Random(kSegments);
    const SegmentPlace place = owners_.PlaceOf(index * kBytes);
    const OwnerId owner = SomeOwner();
    if (!owners_.Share(index, place.id, owner).ok()) return;
    EXPECT_NE(owner, kCommon);
    for (const OwnerId wrote : memory_[index].wrote) EXPECT_EQ(wrote, owner);
    memory_[index].shown.insert(owner);
    EXPECT_EQ(memory_[index].shown.size(), 1u);
  }
  void Drain() {
    if (draining_) {
      EXPECT_EQ(owners_.EndDrain(), memory_[*draining_].extents == 0);
      memory_[*draining_].drains = false;
      draining_.reset();
      return;
    }
    const RoomFor room = SomeRoom();
    for (const uint32_t index : owners_.DrainCandidates(room)) {
      if (!owners_.BeginDrain(index, room)) continue;
      draining_ = index;
      memory_[index].drains = true;
      return;
    }
  }

  std::mt19937 random_;
  FakeMemories memories_;
  SegmentOwners owners_{SegmentGrid(kSegments * kBytes - kHostPageBytes, kBytes), 3, &memories_};
  std::vector<Memory> memory_;
  std::map<OwnerId, int> users_;
  std::map<uint64_t, Extent> taken_;
  std::optional<std::pair<SegmentOwners::Claim, RoomFor>> claim_;
  std::optional<uint32_t> draining_;
};

TEST(SegmentOwnersModelTest, NobodyEverSeesAnothersBytes) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    SegmentOwnersModel(seed).Run(400);
    if (::testing::Test::HasFailure()) break;
  }
}

}  // namespace
}  // namespace cairn::cache
