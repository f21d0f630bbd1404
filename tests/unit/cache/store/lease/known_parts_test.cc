#include "services/cache/store/lease/known_parts.h"

#include <gtest/gtest.h>

#include <vector>

#include "cairn/common/hash.h"

namespace cairn::cache {
namespace {

constexpr uint64_t kPage = SlicePages::kBytes;

class KnownPartsTest : public ::testing::Test {
 protected:
  static MemoryAccount::Bounds Bounds(uint64_t leases) {
    MemoryAccount::Bounds bounds{};
    bounds[static_cast<size_t>(MemoryItem::kLeases)] = leases;
    return bounds;
  }
  // Slices of two and a half pages, after a header of 100 bytes.
  static std::shared_ptr<const KnownPart> Part(size_t slices) {
    KnownPart part;
    for (size_t i = 0; i < slices; ++i) {
      part.slices.push_back({.offset = 100 + i * kSlice, .length = kSlice, .xxh3 = i});
    }
    return std::make_shared<const KnownPart>(std::move(part));
  }
  static std::vector<std::byte> Bytes(size_t seed) {
    std::vector<std::byte> bytes(kSlice);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7 + seed);
    return bytes;
  }

  static constexpr uint64_t kSlice = 5 * kPage / 2;
};

TEST_F(KnownPartsTest, RemembersWhereSlicesLie) {
  MemoryAccount account(MemoryAccount::Unbounded());
  KnownParts known;
  const auto part = Part(3);
  known.Add(TierKind::kDisk, 7, part, &account);
  known.Add(TierKind::kDisk, 7, Part(1), &account);
  EXPECT_EQ(known.Find(TierKind::kDisk, 7), part) << "the first one stays";
  EXPECT_EQ(known.Find(TierKind::kDisk, 8), nullptr);
  EXPECT_EQ(known.Find(TierKind::kDevice, 7), nullptr);
  EXPECT_TRUE(known.PagesOf(TierKind::kDisk, 7, 0).empty());
}

// Neighbouring slices share a page, and each hash is that of one slice's bytes there.
TEST_F(KnownPartsTest, RemembersTheHashesOfASlicesBytesInEachPage) {
  MemoryAccount account(MemoryAccount::Unbounded());
  KnownParts known;
  const auto part = Part(3);
  known.Add(TierKind::kDisk, 7, part, &account);
  for (const size_t slice : {2u, 0u}) {
    known.AddPages(TierKind::kDisk, 7, slice, Bytes(slice), &account);
  }
  EXPECT_TRUE(known.PagesOf(TierKind::kDisk, 7, 1).empty());
  for (const size_t slice : {0u, 2u}) {
    const std::vector<std::byte> bytes = Bytes(slice);
    const format::SliceEntry& entry = part->slices[slice];
    const std::vector<uint64_t> hashes = known.PagesOf(TierKind::kDisk, 7, slice);
    const SlicePages pages = SlicePages::Of(entry);
    ASSERT_EQ(hashes.size(), pages.count());
    uint64_t covered = 0;
    for (uint64_t i = 0; i < pages.count(); ++i) {
      const auto [begin, end] = InPage(entry, pages.begin + i);
      EXPECT_EQ(begin, entry.offset + covered);
      EXPECT_EQ(hashes[i], Xxh3(std::span(bytes).subspan(covered, end - begin)));
      covered += end - begin;
    }
    EXPECT_EQ(covered, kSlice);
  }
  const std::vector<std::byte> others = Bytes(1);
  known.AddPages(TierKind::kDisk, 7, 1, std::span(others).first(kPage), &account);
  EXPECT_TRUE(known.PagesOf(TierKind::kDisk, 7, 1).empty()) << "those are not its bytes";
  known.AddPages(TierKind::kDisk, 9, 0, Bytes(0), &account);
  EXPECT_TRUE(known.PagesOf(TierKind::kDisk, 9, 0).empty()) << "an unknown part";
}

TEST_F(KnownPartsTest, TakesHalfOfTheItemAtMostAndGivesItBack) {
  constexpr uint64_t kBound = 20'000;
  MemoryAccount account(Bounds(kBound));
  {
    KnownParts known;
    for (uint64_t extent = 0; extent < 1000; ++extent) {
      known.Add(TierKind::kDisk, extent, Part(3), &account);
      known.AddPages(TierKind::kDisk, extent, 0, Bytes(0), &account);
    }
    EXPECT_GT(account.used(MemoryItem::kLeases), kBound / 4);
    EXPECT_LE(account.used(MemoryItem::kLeases), kBound / 2);
    EXPECT_EQ(account.refusals(MemoryItem::kLeases), 0u) << "no request was refused";
    EXPECT_NE(known.Find(TierKind::kDisk, 0), nullptr);
    EXPECT_EQ(known.Find(TierKind::kDisk, 999), nullptr);
  }
  EXPECT_EQ(account.used(MemoryItem::kLeases), 0u);
}

}  // namespace
}  // namespace cairn::cache
