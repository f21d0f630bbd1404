#include "services/cache/store/state/bump_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "common/status/matchers.h"
#include "services/cache/store/state/bump_record.h"

namespace cairn::cache {
namespace {

Bump BumpOf(const std::string& ns, uint64_t n) {
  Bump bump{Sha256::Of(ns), {}};
  std::memcpy(bump.id.data(), &n, sizeof(n));
  return bump;
}

std::vector<Bump> BumpsOf(const std::string& ns, uint64_t first, uint64_t last) {
  std::vector<Bump> bumps;
  for (uint64_t n = first; n <= last; ++n) bumps.push_back(BumpOf(ns, n));
  return bumps;
}

class BumpLogTest : public ::testing::Test {
 protected:
  std::vector<Bump> All(const BumpLog& log) const {
    std::vector<Bump> all;
    for (uint64_t at = 0;;) {
      const BumpPage page = log.Page(at, BumpPage::kMost);
      all.insert(all.end(), page.bumps.begin(), page.bumps.end());
      if (page.next == 0) return all;
      EXPECT_EQ(page.next, at + page.bumps.size());
      at = page.next;
    }
  }

  MemoryAccount account_{MemoryAccount::Unbounded()};
  BumpLog log_{&account_};
};

TEST_F(BumpLogTest, DigestsAreEqualForEqualSetsInAnyOrder) {
  EXPECT_EQ(log_.digest(), 0u);
  EXPECT_EQ(log_.DigestOf(Sha256::Of("a")), 0u);
  std::vector<Bump> bumps = BumpsOf("a", 1, 3);
  bumps.push_back(BumpOf("b", 1));
  log_.Add(bumps);
  BumpLog other(&account_);
  std::reverse(bumps.begin(), bumps.end());
  other.Add(std::span(bumps).first(2));
  EXPECT_NE(other.digest(), log_.digest());
  EXPECT_NE(other.DigestOf(Sha256::Of("a")), log_.DigestOf(Sha256::Of("a")));
  EXPECT_EQ(other.DigestOf(Sha256::Of("b")), log_.DigestOf(Sha256::Of("b")));
  other.Add(bumps);
  EXPECT_EQ(other.digest(), log_.digest());
  EXPECT_EQ(other.DigestOf(Sha256::Of("a")), log_.DigestOf(Sha256::Of("a")));
  EXPECT_NE(log_.DigestOf(Sha256::Of("a")), 0u);
  EXPECT_EQ(log_.DigestOf(Sha256::Of("c")), 0u);
}

// The digest goes from one member to the other: a change of it is a change of the protocol.
TEST_F(BumpLogTest, DigestsAreTheSameInEveryBuild) {
  log_.Add(BumpsOf("a", 1, 2));
  EXPECT_EQ(log_.digest(), log_.DigestOf(Sha256::Of("a")));
  EXPECT_EQ(log_.digest(), 0x28cf8145bbcb7bcfu);
}

TEST_F(BumpLogTest, PagesAreInTheOrderOfArrival) {
  const std::vector<Bump> bumps = BumpsOf("a", 1, 10);
  log_.Add(bumps);
  EXPECT_EQ(All(log_), bumps);
  BumpPage page = log_.Page(0, 4);
  EXPECT_EQ(page.bumps, BumpsOf("a", 1, 4));
  EXPECT_EQ(page.next, 4u);
  page = log_.Page(page.next, 6);
  EXPECT_EQ(page.bumps, BumpsOf("a", 5, 10));
  EXPECT_EQ(page.next, 0u);
  EXPECT_TRUE(log_.Page(10, 4).bumps.empty());
  EXPECT_TRUE(log_.Page(UINT64_MAX, SIZE_MAX).bumps.empty());
  EXPECT_EQ(log_.Page(9, 0).bumps.size(), 1u);  // Whoever asks for more gets on.
}

TEST_F(BumpLogTest, UnknownOnesAreNamedOnce) {
  log_.Add(BumpsOf("a", 1, 2));
  std::vector<Bump> asked = BumpsOf("a", 1, 4);
  asked.push_back(BumpOf("a", 3));
  asked.push_back(BumpOf("b", 1));
  std::vector<Bump> expected = BumpsOf("a", 3, 4);
  expected.push_back(BumpOf("b", 1));
  EXPECT_EQ(log_.UnknownOf(asked), expected);
}

TEST_F(BumpLogTest, TheOldestAreToldNoMoreButStayKnown) {
  const auto bumps = BumpsOf("a", 1, BumpLog::kTold + 2);
  log_.Add(bumps);
  EXPECT_EQ(All(log_), std::vector<Bump>(bumps.begin() + 2, bumps.end()));
  EXPECT_TRUE(log_.UnknownOf(bumps).empty());
  // As on a member that never heard of the first two.
  MemoryAccount theirs(MemoryAccount::Unbounded());
  BumpLog other(&theirs);
  other.Add(std::span(bumps).subspan(2));
  EXPECT_EQ(log_.digest(), other.digest());
  // And of a namespace whose only bump is told no more.
  log_.Add(BumpsOf("b", 1, BumpLog::kTold));
  EXPECT_EQ(log_.DigestOf(Sha256::Of("a")), 0u);
  EXPECT_TRUE(log_.UnknownOf(std::span(bumps).subspan(2)).empty());
  EXPECT_EQ(log_.UnknownOf(std::span(bumps).first(2)).size(), 2u);  // Forgotten in the end.
  EXPECT_EQ(account_.used(MemoryItem::kNamespaces), BumpLog::kKept * BumpLog::kBumpBytes);
}

TEST_F(BumpLogTest, MemoryIsChargedAndRefused) {
  MemoryAccount::Bounds bounds{};
  bounds[static_cast<size_t>(MemoryItem::kNamespaces)] = 10 * BumpLog::kBumpBytes;
  MemoryAccount account(bounds);
  BumpLog log(&account);
  EXPECT_OK(log.ChargeFor(10));
  EXPECT_EQ(log.ChargeFor(11).status().code(), StatusCode::kResourceExhausted);
  // A bump of this node is never refused.
  log.Add(BumpsOf("a", 1, 12));
  EXPECT_EQ(account.used(MemoryItem::kNamespaces), 12 * BumpLog::kBumpBytes);
  EXPECT_EQ(log.ChargeFor(1).status().code(), StatusCode::kResourceExhausted);
}

TEST_F(BumpLogTest, ANamespaceUnderAChangeHasTheDigestOfTheChange) {
  const std::vector<Bump> bumps = {BumpOf("a", 1), BumpOf("b", 1)};
  {
    const BumpLog::Change change(&log_, bumps, 77);
    EXPECT_EQ(log_.DigestOf(Sha256::Of("a")), 77u);
    EXPECT_EQ(log_.DigestOf(Sha256::Of("b")), 77u);
    EXPECT_EQ(log_.DigestOf(Sha256::Of("c")), 0u);
    EXPECT_EQ(log_.digest(), 0u);
    log_.Add(bumps);
    EXPECT_EQ(log_.DigestOf(Sha256::Of("a")), 77u);
  }
  EXPECT_NE(log_.DigestOf(Sha256::Of("a")), 77u);
  EXPECT_NE(log_.DigestOf(Sha256::Of("a")), 0u);
}

TEST(BumpRecordTest, ComesBackAsItWas) {
  for (const uint64_t count : {0u, 1u, 4096u}) {
    const auto bumps = BumpsOf("a", 1, count);
    const auto read = DecodeBumps(EncodeBumps(bumps));
    ASSERT_OK(read);
    EXPECT_EQ(*read, bumps);
  }
}

// The bytes of version 1: a change of this hash is a change of the format.
TEST(BumpRecordTest, BytesOfVersionOneAreFixed) {
  const std::string bytes = EncodeBumps(BumpsOf("a", 1, 2));
  EXPECT_EQ(bytes.size(), 112u);
  EXPECT_EQ(Sha256::Of(bytes).Hex(),
            "1afdef66b51503e35765717fdd3d171799307ed0b23b9bd58cf8f632986aa5f6");
}

TEST(BumpRecordTest, EveryFlippedBitAndEveryTruncationIsRefused) {
  const std::string good = EncodeBumps(BumpsOf("a", 1, 2));
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 4);
    EXPECT_EQ(DecodeBumps(bad).status().code(), StatusCode::kDataLoss) << i;
    EXPECT_EQ(DecodeBumps(good.substr(0, i)).status().code(), StatusCode::kDataLoss) << i;
  }
}

TEST(BumpRecordTest, NamesSortByTheirSequence) {
  EXPECT_EQ(BumpMetaName(255), "bumps/00000000000000ff");
  EXPECT_LT(BumpMetaName(9), BumpMetaName(16));
  EXPECT_EQ(BumpSequenceOf(BumpMetaName(UINT64_MAX)), UINT64_MAX);
  for (const char* const name : {"", "bumps/", "bumps/ff", "bumps/00000000000000fg",
                                 "bumps/00000000000000ff0", "namespace/00000000000000ff"}) {
    EXPECT_EQ(BumpSequenceOf(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace cairn::cache
