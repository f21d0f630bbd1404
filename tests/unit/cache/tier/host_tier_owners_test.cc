// Segments that are handed out to other processes: whose bytes can be where, and who can write
// them.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <set>

#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cache/tier/host_tier.h"

namespace cairn::cache {
namespace {

using cairn::testing::StatusIs;
using ::testing::_;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kSegment = 2 * kMiB;

std::unique_ptr<HostTier> MakeTier(uint64_t segments) {
  auto tier = HostTier::Create({.capacity_bytes = segments * kSegment,
                                .segment_bytes = kSegment,
                                .prefault = false,
                                .check_memory = false});
  EXPECT_OK(tier.status());
  return *std::move(tier);
}

uint32_t IndexOf(const HostTier& tier, const Extent& extent) {
  return tier.PlaceOf(extent.id).index;
}

TEST(HostTierOwners, AnOwnersExtentsShareNoSegmentWithOthers) {
  auto tier = MakeTier(4);
  const OwnerId a = tier->AddOwner("a"), b = tier->AddOwner("b");
  EXPECT_EQ(tier->AddOwner("a"), a);
  EXPECT_EQ(tier->FindOwner("b"), b);
  EXPECT_EQ(tier->FindOwner("c"), kCommon);
  const auto common = tier->Reserve(4096);
  const auto of_a = tier->ReserveFor({a}, 4096);
  const auto of_b = tier->ReserveFor({b}, 4096);
  const auto lent = tier->ReserveFor({a, Lending::kLent}, 4096);
  std::set<uint32_t> indexes;
  for (const auto& extent : {common, of_a, of_b, lent}) {
    ASSERT_OK(extent.status());
    indexes.insert(IndexOf(*tier, *extent));
  }
  EXPECT_EQ(indexes.size(), 4u);
  EXPECT_EQ(tier->PlaceOf(of_a->id).owner, a);
  EXPECT_EQ(tier->PlaceOf(lent->id).lending, Lending::kLent);
  EXPECT_EQ(tier->PlaceOf(common->id).owner, kCommon);
}

TEST(HostTierOwners, NobodyGetsAnothersSegment) {
  auto tier = MakeTier(2);
  const OwnerId a = tier->AddOwner("a"), b = tier->AddOwner("b");
  const auto extent = tier->ReserveFor({a}, 4096);
  const auto place = tier->PlaceOf(extent->id);
  EXPECT_THAT(tier->Share(place.index, place.id, b).status(), StatusIs(StatusCode::kNotFound, _));
  EXPECT_THAT(tier->Share(place.index, place.id, kCommon).status(),
              StatusIs(StatusCode::kNotFound, _));
  EXPECT_THAT(tier->Share(place.index, place.id + 1, a).status(),
              StatusIs(StatusCode::kNotFound, _));
  EXPECT_THAT(tier->Share(99, place.id, a).status(), StatusIs(StatusCode::kNotFound, _));
  const auto common = tier->Reserve(4096);
  const auto common_place = tier->PlaceOf(common->id);
  EXPECT_FALSE(tier->Share(common_place.index, common_place.id, kCommon).ok());
  EXPECT_FALSE(tier->Share(common_place.index, common_place.id, a).ok());
}

TEST(HostTierOwners, ASealedSegmentCannotBeWrittenByAnybodyElse) {
  auto tier = MakeTier(2);
  const OwnerId a = tier->AddOwner("a");
  const auto extent = tier->ReserveFor({a}, 4096);
  std::memset(tier->Map(*extent).data(), 'x', 4096);
  const auto place = tier->PlaceOf(extent->id);
  const auto shared = tier->Share(place.index, place.id, a);
  ASSERT_OK(shared.status());
  EXPECT_EQ(shared->lending, Lending::kSealed);

  const auto try_all = [&](int fd) {
    EXPECT_EQ(mmap(nullptr, kSegment, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
    EXPECT_LT(pwrite(fd, "y", 1, 0), 0);
    EXPECT_NE(ftruncate(fd, 0), 0);
    EXPECT_NE(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
    EXPECT_NE(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
    void* map = mmap(nullptr, kSegment, PROT_READ, MAP_SHARED, fd, 0);
    ASSERT_NE(map, MAP_FAILED);
    EXPECT_EQ(static_cast<const char*>(map)[place.offset], 'x');
    EXPECT_NE(mprotect(map, kSegment, PROT_READ | PROT_WRITE), 0);
    munmap(map, kSegment);
  };
  try_all(shared->fd);
  const std::string path = "/proc/self/fd/" + std::to_string(shared->fd);
  const int again = open(path.c_str(), O_RDWR);
  if (again >= 0) {
    try_all(again);
    close(again);
  }
  close(shared->fd);
  // The node itself goes on writing.
  std::memset(tier->Map(*extent).data(), 'z', 4096);
}

TEST(HostTierOwners, ALentSegmentIsWrittenThroughItsDescriptor) {
  auto tier = MakeTier(2);
  const OwnerId a = tier->AddOwner("a");
  const auto extent = tier->ReserveFor({a, Lending::kLent}, 4096);
  const auto place = tier->PlaceOf(extent->id);
  const auto shared = tier->Share(place.index, place.id, a);
  ASSERT_OK(shared.status());
  void* map = mmap(nullptr, kSegment, PROT_READ | PROT_WRITE, MAP_SHARED, shared->fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  static_cast<char*>(map)[place.offset] = 'q';
  EXPECT_EQ(static_cast<char>(tier->Map(*extent)[0]), 'q');
  EXPECT_NE(ftruncate(shared->fd, 0), 0) << "the node would get SIGBUS";
  munmap(map, kSegment);
  close(shared->fd);
}

TEST(HostTierOwners, WhatWasHandedOutShowsNothingOfTheNextOwner) {
  auto tier = MakeTier(1);
  const OwnerId a = tier->AddOwner("a"), b = tier->AddOwner("b");
  for (const Lending lending : {Lending::kSealed, Lending::kLent}) {
    const auto of_a = tier->ReserveFor({a, lending}, 4096);
    ASSERT_OK(of_a.status());
    const auto place = tier->PlaceOf(of_a->id);
    const auto shared = tier->Share(place.index, place.id, a);
    ASSERT_OK(shared.status());
    auto* map = static_cast<char*>(mmap(nullptr, kSegment, PROT_READ, MAP_SHARED, shared->fd, 0));
    ASSERT_NE(map, MAP_FAILED);
    std::memset(tier->Map(*of_a).data(), 'a', 4096);
    EXPECT_THAT(tier->ReserveFor({b}, 4096).status(), StatusIs(StatusCode::kResourceExhausted, _));
    EXPECT_THAT(tier->Reserve(4096).status(), StatusIs(StatusCode::kResourceExhausted, _));
    tier->Release(*of_a);

    const auto of_b = tier->ReserveFor({b}, 4096);
    ASSERT_OK(of_b.status());
    EXPECT_EQ(of_b->id, of_a->id);
    std::memset(tier->Map(*of_b).data(), 'b', 4096);
    EXPECT_EQ(map[place.offset], 'a') << "the old memory";
    EXPECT_NE(tier->PlaceOf(of_b->id).id, place.id);
    EXPECT_FALSE(tier->IsCurrent(place.index, place.id, a));
    EXPECT_FALSE(tier->Share(place.index, place.id, a).ok());
    munmap(map, kSegment);
    close(shared->fd);
    tier->Release(*of_b);
  }
}

TEST(HostTierOwners, EmptySegmentsComeBackToEverybody) {
  auto tier = MakeTier(2);
  const OwnerId a = tier->AddOwner("a");
  const auto first = tier->ReserveFor({a}, kSegment), second = tier->ReserveFor({a}, kSegment);
  ASSERT_OK(second.status());
  EXPECT_FALSE(tier->Reserve(4096).ok());
  tier->Release(*first);
  EXPECT_OK(tier->Reserve(kSegment).status());
  EXPECT_FALSE(tier->ReserveFor({a, Lending::kLent}, 4096).ok());
  tier->Release(*second);
  EXPECT_OK(tier->ReserveFor({a, Lending::kLent}, kSegment).status());
}

TEST(HostTierOwners, SealedRoomFallsBackToCommonAndToLent) {
  auto tier = MakeTier(2);
  const auto common = tier->Reserve(4096);
  const OwnerId a = tier->AddOwner("a");
  const auto lent = tier->ReserveFor({a, Lending::kLent}, 4096);
  const auto in_common = tier->ReserveFor({a}, kMiB);
  ASSERT_OK(in_common.status());
  EXPECT_EQ(tier->PlaceOf(in_common->id).owner, kCommon);
  ASSERT_OK(tier->Reserve(kMiB / 2).status());
  const auto in_lent = tier->ReserveFor({a}, kMiB);
  ASSERT_OK(in_lent.status());
  EXPECT_EQ(tier->PlaceOf(in_lent->id).lending, Lending::kLent);
  // But the other way round would hand out sealed bytes for writing.
  EXPECT_FALSE(tier->ReserveFor({a, Lending::kLent}, kSegment - 4096).ok());
}

TEST(HostTierOwners, OneThatHasLessThanItsShareDrainsASegmentOfAnother) {
  auto tier = MakeTier(4);
  const OwnerId a = tier->AddOwner("a"), b = tier->AddOwner("b");
  std::vector<Extent> of_a;
  for (int i = 0; i < 8; ++i) of_a.push_back(*tier->ReserveFor({a}, kMiB));
  EXPECT_FALSE(tier->ReserveFor({b}, 4096).ok());
  tier->Release(of_a[5]);
  EXPECT_FALSE(tier->WantsMore({a}));
  EXPECT_TRUE(tier->WantsMore({b}));
  // Nothing new of a's goes into the segment that was half empty.
  EXPECT_FALSE(tier->ReserveFor({a}, kMiB).ok());
  tier->Release(of_a[4]);
  EXPECT_FALSE(tier->ReserveFor({a}, 3 * kMiB).ok());
  const auto of_b = tier->ReserveFor({b}, kMiB);
  ASSERT_OK(of_b.status());
  EXPECT_EQ(of_b->id, of_a[4].id);
}

TEST(HostTierOwners, SegmentsOfNamesEachOnce) {
  auto tier = MakeTier(3);
  const OwnerId a = tier->AddOwner("a");
  EXPECT_TRUE(tier->SegmentsOf(a).empty());
  EXPECT_TRUE(tier->SegmentsOf(kCommon).empty());
  ASSERT_OK(tier->ReserveFor({a}, 4096).status());
  ASSERT_OK(tier->ReserveFor({a, Lending::kLent}, 4096).status());
  EXPECT_EQ(tier->SegmentsOf(a).size(), 2u);
}

}  // namespace
}  // namespace cairn::cache
