// Segments that are handed out to other processes: whose bytes can be where, and who can write
// them.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "common/status/matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "services/cache/store/tier/host_tier.h"

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

OwnerId Owner(HostTier& tier, std::string_view name) { return *tier.AddOwner(name); }

// The memory that a process sees that was given the segment of `extent`, and keeps it.
class Mapping {
 public:
  Mapping(HostTier& tier, const Extent& extent, OwnerId owner) : place_(tier.PlaceOf(extent.id)) {
    const auto shared = tier.Share(place_.index, place_.id, owner);
    EXPECT_OK(shared.status());
    if (!shared.ok()) return;
    fd_ = shared->fd;
    void* map = mmap(nullptr, kSegment, PROT_READ, MAP_SHARED, fd_, 0);
    EXPECT_NE(map, MAP_FAILED);
    bytes_ = {static_cast<char*>(map), kSegment};
  }
  ~Mapping() {
    if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
    if (fd_ >= 0) close(fd_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::string_view bytes() const { return bytes_; }
  // Bytes that are neither zero nor `own`.
  size_t Foreign(char own) const {
    return static_cast<size_t>(
        std::count_if(bytes_.begin(), bytes_.end(), [own](char c) { return c != 0 && c != own; }));
  }
  const HostTier::Place& place() const { return place_; }
  // The number of the memory, and the bytes that it takes.
  std::pair<uint64_t, uint64_t> Memory() const {
    struct stat info {};
    EXPECT_EQ(fstat(fd_, &info), 0);
    return {info.st_ino, static_cast<uint64_t>(info.st_blocks) * 512};
  }

 private:
  HostTier::Place place_;
  std::string_view bytes_;
  int fd_ = -1;
};

uint32_t IndexOf(const HostTier& tier, const Extent& extent) {
  return tier.PlaceOf(extent.id).index;
}

TEST(HostTierOwners, AnOwnersExtentsShareNoSegmentWithOthers) {
  auto tier = MakeTier(4);
  const OwnerId a = Owner(*tier, "a"), b = Owner(*tier, "b");
  EXPECT_EQ(Owner(*tier, "a"), a);
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
  const OwnerId a = Owner(*tier, "a"), b = Owner(*tier, "b");
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
  const OwnerId a = Owner(*tier, "a");
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
  const OwnerId a = Owner(*tier, "a");
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
  const OwnerId a = Owner(*tier, "a"), b = Owner(*tier, "b");
  for (const Lending lending : {Lending::kSealed, Lending::kLent}) {
    const auto of_a = tier->ReserveFor({a, lending}, 4096);
    ASSERT_OK(of_a.status());
    const auto place = tier->PlaceOf(of_a->id);
    const auto shared = tier->Share(place.index, place.id, a);
    ASSERT_OK(shared.status());
    auto* map = static_cast<char*>(mmap(nullptr, kSegment, PROT_READ, MAP_SHARED, shared->fd, 0));
    ASSERT_NE(map, MAP_FAILED);
    // In the second round, b had this memory before.
    EXPECT_EQ(std::string_view(map, kSegment).find_first_not_of('\0'), std::string_view::npos)
        << "bytes of the owner before, as " << (lending == Lending::kLent ? "lent" : "sealed");
    std::memset(tier->Map(*of_a).data(), 'a', 4096);
    EXPECT_THAT(tier->ReserveFor({b}, 4096).status(), StatusIs(StatusCode::kResourceExhausted, _));
    EXPECT_THAT(tier->Reserve(4096).status(), StatusIs(StatusCode::kResourceExhausted, _));
    tier->Release(*of_a);

    const auto of_b = tier->ReserveFor({b}, 4096);
    ASSERT_OK(of_b.status());
    EXPECT_EQ(of_b->id, of_a->id);
    std::memset(tier->Map(*of_b).data(), 'b', 4096);
    // The old memory. Lent memory may be punched, because nobody's seals protect its readers.
    EXPECT_EQ(map[place.offset], lending == Lending::kSealed ? 'a' : 0);
    EXPECT_NE(tier->PlaceOf(of_b->id).id, place.id);
    EXPECT_FALSE(tier->IsCurrent(place.index, place.id, a));
    EXPECT_FALSE(tier->Share(place.index, place.id, a).ok());
    munmap(map, kSegment);
    close(shared->fd);
    tier->Release(*of_b);
  }
}

// Nobody has seen a common segment, so it may be used again as it is, but not be shown.
TEST(HostTierOwners, WhatWasCommonShowsNothingToItsFirstOwner) {
  for (const Lending lending : {Lending::kSealed, Lending::kLent}) {
    auto tier = MakeTier(1);
    const auto common = tier->Reserve(kSegment);
    ASSERT_OK(common.status());
    std::memset(tier->Map(*common).data(), 'c', kSegment);
    tier->Release(*common);
    const OwnerId a = Owner(*tier, "a");
    const auto of_a = tier->ReserveFor({a, lending}, 4096);
    ASSERT_OK(of_a.status());
    EXPECT_EQ(Mapping(*tier, *of_a, a).Foreign('a'), 0u);
  }
}

// The same where the owner before never had a reader, so that the segment was not handed out.
TEST(HostTierOwners, WhatAnOwnerWroteUnseenShowsNothingToTheNext) {
  auto tier = MakeTier(1);
  const OwnerId a = Owner(*tier, "a"), b = Owner(*tier, "b");
  for (const OwnerId owner : {a, b, kCommon, a}) {
    const auto extent = tier->ReserveFor({owner}, kSegment);
    ASSERT_OK(extent.status());
    if (owner != kCommon) {
      EXPECT_EQ(Mapping(*tier, *extent, owner).Foreign('x'), 0u);
    }
    std::memset(tier->Map(*extent).data(), 'a' + static_cast<int>(owner), kSegment);
    tier->Release(*extent);
  }
}

// Owners that take turns, and readers that keep every mapping they ever had.
TEST(HostTierOwners, ReadersThatKeepOldMappingsDoNotMakeTheArenaGrow) {
  constexpr uint64_t kSegments = 8;
  auto tier = MakeTier(kSegments);
  const OwnerId owners[] = {Owner(*tier, "a"), Owner(*tier, "b")};
  std::vector<std::unique_ptr<Mapping>> kept;
  uint64_t refused = 0;
  for (int turn = 0; turn < 20; ++turn) {
    const OwnerId owner = owners[turn % 2];
    std::vector<Extent> extents;
    for (uint64_t i = 0; i < kSegments; ++i) {
      const auto extent = tier->ReserveFor({owner, Lending::kSealed}, kSegment);
      if (!extent.ok()) {
        ++refused;
        continue;
      }
      extents.push_back(*extent);
      std::memset(tier->Map(*extent).data(), 'a' + turn % 2, kSegment);
      kept.push_back(std::make_unique<Mapping>(*tier, *extent, owner));
      EXPECT_EQ(kept.back()->Foreign(static_cast<char>('a' + turn % 2)), 0u);
    }
    for (const Extent& extent : extents) tier->Release(extent);
  }
  std::map<uint64_t, uint64_t> memories;
  for (const auto& mapping : kept) memories.insert(mapping->Memory());
  uint64_t bytes = 0;
  for (const auto& [number, size] : memories) bytes += size;
  EXPECT_LE(bytes, (kSegments + 1) * kSegment) << refused << " refused";
}

// Random owners, both lendings, readers that keep their mappings for a while. No reader ever sees a
// byte of anybody else, in new mappings or in old ones, and the allocated bytes add up.
TEST(HostTierOwners, NoMappingEverShowsAnothersBytes) {
  constexpr uint64_t kSegments = 6;
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    std::mt19937 random(seed);
    auto tier = MakeTier(kSegments);
    std::vector<OwnerId> owners = {kCommon};
    for (const char* name : {"a", "b", "c"}) owners.push_back(Owner(*tier, name));
    struct Held {
      OwnerId owner;
      Extent extent;
    };
    std::vector<Held> held;
    std::vector<std::pair<OwnerId, std::unique_ptr<Mapping>>> mappings;
    uint64_t reserved = 0;
    const auto letter = [](OwnerId owner) { return static_cast<char>('A' + owner); };
    for (int step = 0; step < 600; ++step) {
      const uint32_t dice = random() % 100;
      if (dice < 55) {
        const OwnerId owner = owners[random() % owners.size()];
        const auto lending =
            random() % 3 == 0 && owner != kCommon ? Lending::kLent : Lending::kSealed;
        const auto length = static_cast<uint32_t>(4096 * (1 + random() % 200));
        const auto extent = tier->ReserveFor({owner, lending}, length);
        if (!extent.ok()) continue;
        held.push_back({owner, *extent});
        reserved += length;
        std::memset(tier->Map(*extent).data(), letter(owner), length);
        const auto place = tier->PlaceOf(extent->id);
        if (place.owner != kCommon && random() % 2 == 0) {
          ASSERT_EQ(place.owner, owner);
          mappings.emplace_back(owner, std::make_unique<Mapping>(*tier, *extent, owner));
        }
      } else if (dice < 92 && !held.empty()) {
        // Runs of releases, so that segments get empty.
        for (size_t n = random() % 12; n > 0 && !held.empty(); --n) {
          const size_t at = random() % held.size();
          reserved -= held[at].extent.length;
          tier->Release(held[at].extent);
          held[at] = held.back();
          held.pop_back();
        }
      } else if (!mappings.empty()) {
        mappings.erase(mappings.begin() + static_cast<ptrdiff_t>(random() % mappings.size()));
      }
      ASSERT_EQ(tier->GetStats().used_bytes, reserved);
      ASSERT_EQ(tier->GetStats().extents, held.size());
      if (step % 20 != 0) continue;
      for (const auto& [owner, mapping] : mappings) {
        ASSERT_EQ(mapping->Foreign(letter(owner)), 0u) << "seed " << seed << " step " << step;
      }
    }
    for (const Held& h : held) {
      const auto bytes = tier->Map(h.extent);
      ASSERT_EQ(std::count(bytes.begin(), bytes.end(), std::byte(letter(h.owner))),
                static_cast<ptrdiff_t>(bytes.size()));
    }
  }
}

TEST(HostTierOwners, EmptySegmentsComeBackToEverybody) {
  auto tier = MakeTier(2);
  const OwnerId a = Owner(*tier, "a");
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
  const OwnerId a = Owner(*tier, "a");
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
  const OwnerId a = Owner(*tier, "a"), b = Owner(*tier, "b");
  std::vector<Extent> of_a;
  for (int i = 0; i < 8; ++i) of_a.push_back(*tier->ReserveFor({a}, kMiB));
  EXPECT_FALSE(tier->ReserveFor({b}, 4096).ok());
  tier->Release(of_a[5]);
  EXPECT_FALSE(tier->HasLessThanItsShare({a}));
  EXPECT_TRUE(tier->DrainCandidates({a}).empty());
  EXPECT_TRUE(tier->HasLessThanItsShare({b}));
  const std::vector<uint32_t> candidates = tier->DrainCandidates({b});
  ASSERT_EQ(candidates.size(), 4u);
  // The one that is used least.
  EXPECT_EQ(candidates[0], IndexOf(*tier, of_a[5]));
  ASSERT_TRUE(tier->BeginDrain(candidates[0], {b}));
  EXPECT_FALSE(tier->BeginDrain(candidates[1], {b})) << "one at a time";
  // Nothing new of a's goes there.
  EXPECT_FALSE(tier->ReserveFor({a}, kMiB).ok());
  tier->Release(of_a[4]);
  EXPECT_FALSE(tier->ReserveFor({b}, kMiB).ok()) << "still draining";
  ASSERT_TRUE(tier->EndDrain());
  EXPECT_FALSE(tier->ReserveFor({a}, kMiB).ok());
  const auto of_b = tier->ReserveFor({b}, kMiB);
  ASSERT_OK(of_b.status());
  EXPECT_EQ(of_b->id, of_a[4].id);
  EXPECT_EQ(tier->DrainCandidates({b}).size(), 3u);
}

TEST(HostTierOwners, ASegmentThatDidNotGetEmptyIsUsedAsBefore) {
  auto tier = MakeTier(2);
  const OwnerId a = Owner(*tier, "a"), b = Owner(*tier, "b");
  std::vector<Extent> of_a;
  for (int i = 0; i < 4; ++i) of_a.push_back(*tier->ReserveFor({a}, kMiB));
  const uint32_t index = IndexOf(*tier, of_a[0]);
  ASSERT_TRUE(tier->BeginDrain(index, {b}));
  tier->Release(of_a[0]);
  EXPECT_FALSE(tier->ReserveFor({a}, kMiB).ok());
  EXPECT_FALSE(tier->EndDrain());
  EXPECT_FALSE(tier->ReserveFor({b}, kMiB).ok());
  EXPECT_OK(tier->ReserveFor({a}, kMiB).status());
}

// The owner that was to get the emptied segment does not come: it is there for others.
TEST(HostTierOwners, AnEmptiedSegmentIsNotLostWithItsOwner) {
  auto tier = MakeTier(3);
  const OwnerId a = Owner(*tier, "a"), b = Owner(*tier, "b"), c = Owner(*tier, "c");
  std::vector<Extent> of_a;
  for (int i = 0; i < 3; ++i) of_a.push_back(*tier->ReserveFor({a}, kSegment));
  const auto empty_for = [&](OwnerId owner) {
    ASSERT_TRUE(tier->BeginDrain(IndexOf(*tier, of_a[0]), {owner}));
    tier->Release(of_a[0]);
    ASSERT_TRUE(tier->EndDrain());
    EXPECT_FALSE(tier->ReserveFor({a}, kSegment).ok());
  };
  empty_for(b);
  ASSERT_TRUE(tier->BeginDrain(IndexOf(*tier, of_a[1]), {c})) << "b did not come";
  EXPECT_FALSE(tier->EndDrain());
  of_a[0] = *tier->ReserveFor({a}, kSegment);
  empty_for(b);
  tier->RemoveOwner(b);
  EXPECT_OK(tier->ReserveFor({a}, kSegment).status());
}

TEST(HostTierOwners, NamesAreGivenBack) {
  auto tier = *HostTier::Create({.capacity_bytes = 4 * kSegment,
                                 .segment_bytes = kSegment,
                                 .prefault = false,
                                 .check_memory = false,
                                 .max_owners = 3});
  const OwnerId a = *tier->AddOwner("a"), b = *tier->AddOwner("b"), c = *tier->AddOwner("c");
  EXPECT_THAT(tier->AddOwner("d").status(), StatusIs(StatusCode::kResourceExhausted, _));
  EXPECT_EQ(*tier->AddOwner("a"), a);
  tier->RemoveOwner(a);
  EXPECT_THAT(tier->AddOwner("d").status(), StatusIs(StatusCode::kResourceExhausted, _))
      << "a has one user left";
  const auto of_b = tier->ReserveFor({b}, 4096);
  std::memset(tier->Map(*of_b).data(), 'b', 4096);
  const auto of_c = tier->ReserveFor({c}, 4096);
  const auto unseen = tier->PlaceOf(of_c->id).index;
  const auto kept = std::make_unique<Mapping>(*tier, *of_b, b);
  tier->RemoveOwner(b);
  tier->RemoveOwner(c);
  EXPECT_EQ(tier->FindOwner("b"), b) << "it comes back to what it has";
  const uint32_t version = tier->owners_version();
  // The one that has been without users for longest goes.
  const OwnerId d = *tier->AddOwner("d");
  EXPECT_NE(tier->owners_version(), version);
  EXPECT_EQ(tier->FindOwner("b"), kCommon);
  EXPECT_EQ(tier->FindOwner("c"), c);
  EXPECT_EQ(*tier->AddOwner("c"), c);
  tier->RemoveOwner(c);
  const OwnerId e = *tier->AddOwner("e");
  EXPECT_EQ(tier->FindOwner("c"), kCommon);
  for (const OwnerId id : {d, e}) EXPECT_TRUE(id != a && id != b && id != c) << "an id of before";
  // Their blocks stay. Those that nobody else has seen lie in common memory now, the others where
  // nobody gets room.
  EXPECT_EQ(static_cast<char>(tier->Map(*of_b)[0]), 'b');
  EXPECT_EQ(tier->PlaceOf(of_c->id).owner, kCommon);
  for (int i = 0; i < 3; ++i) ASSERT_OK(tier->Reserve(kMiB / 2).status());
  EXPECT_EQ(tier->segment_count(), 4u);
  for (const OwnerId id : {a, d, e}) {
    const auto extent = tier->ReserveFor({id}, 4096);
    if (!extent.ok()) continue;
    EXPECT_NE(IndexOf(*tier, *extent), kept->place().index);
  }
  EXPECT_EQ(kept->Foreign('b'), 0u);
  EXPECT_EQ(tier->PlaceOf(of_c->id).index, unseen);
  // A reservation that began before b was given back.
  EXPECT_OK(tier->ReserveFor({b}, 4096).status());
  EXPECT_FALSE(tier->ReserveFor({b, Lending::kLent}, 4096).ok());
  EXPECT_FALSE(tier->Share(kept->place().index, kept->place().id, b).ok());
  // Emptied, it is anybody's, with memory of its own.
  tier->Release(*of_b);
  EXPECT_OK(tier->ReserveFor({d, Lending::kLent}, kSegment).status());
  EXPECT_EQ(kept->Foreign('b'), 0u);
}

TEST(HostTierOwners, SegmentsOfNamesEachOnce) {
  auto tier = MakeTier(3);
  const OwnerId a = Owner(*tier, "a");
  EXPECT_TRUE(tier->SegmentsOf(a).empty());
  EXPECT_TRUE(tier->SegmentsOf(kCommon).empty());
  ASSERT_OK(tier->ReserveFor({a}, 4096).status());
  ASSERT_OK(tier->ReserveFor({a, Lending::kLent}, 4096).status());
  EXPECT_EQ(tier->SegmentsOf(a).size(), 2u);
}

}  // namespace
}  // namespace cairn::cache
