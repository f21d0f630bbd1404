// The suite that every tier passes; the files next to this one name the tiers.

#include <cstring>
#include <random>
#include <set>
#include <thread>

#include "tests/conformance/cache/tier/tier_conformance.h"

namespace cairn::cache::conformance {

TEST_P(TierConformance, ReadsWhatWasWritten) {
  const uint32_t sizes[] = {1, 7, 4095, 4096, 4097, 65536, 100001, 1400000};
  std::vector<std::pair<uint64_t, Extent>> extents;
  uint64_t seed = 1;
  for (uint32_t size : sizes) extents.emplace_back(seed, Put(seed, size)), ++seed;
  for (const auto& [s, extent] : extents) ExpectBytes(s, extent);
  for (const auto& [s, extent] : extents) ExpectBytes(s, extent);
  const TierStats stats = tier_->GetStats();
  EXPECT_EQ(stats.extents, std::size(sizes));
  EXPECT_GE(stats.used_bytes, stats.written_bytes);
  EXPECT_EQ(stats.read_bytes, 2 * stats.written_bytes);
  EXPECT_EQ(stats.io_errors, 0u);
}

TEST_P(TierConformance, ReadsPartsOfWhatWasWritten) {
  using ::cairn::testing::StatusIs;
  constexpr uint32_t kBytes = 100'001;
  const Extent extent = Put(1, kBytes);
  std::vector<std::byte> bytes(5000);
  if (!tier_->reads_ranges()) {
    EXPECT_THAT(ReadRangeAndWait(*tier_, extent, 0, bytes),
                StatusIs(StatusCode::kUnimplemented, ::testing::HasSubstr("whole extents")));
    return;
  }
  const std::vector<std::byte> whole = Pattern(1, kBytes);
  for (const uint64_t offset : {0, 4096, 65536, 94208}) {
    ASSERT_OK(ReadRangeAndWait(*tier_, extent, offset, bytes));
    EXPECT_EQ(std::memcmp(bytes.data(), whole.data() + offset, bytes.size()), 0) << offset;
  }
  const auto rest = std::span(bytes).first(kBytes - 98304);
  ASSERT_OK(ReadRangeAndWait(*tier_, extent, 98304, rest));
  EXPECT_EQ(std::memcmp(rest.data(), whole.data() + 98304, rest.size()), 0);
  for (const uint64_t offset : {100u, 98304u, 102400u}) {
    EXPECT_THAT(ReadRangeAndWait(*tier_, extent, offset, bytes),
                StatusIs(StatusCode::kInvalidArgument, ::testing::HasSubstr("field 'offset'")));
  }
}

TEST_P(TierConformance, ZeroAndTooLargeLengthsAreNamed) {
  using ::cairn::testing::StatusIs;
  EXPECT_THAT(tier_->Reserve(0),
              StatusIs(StatusCode::kInvalidArgument, ::testing::HasSubstr("'length': got 0")));
  EXPECT_THAT(tier_->Reserve(tier_->max_extent_bytes() + 1),
              StatusIs(StatusCode::kInvalidArgument,
                       ::testing::HasSubstr(std::to_string(tier_->max_extent_bytes()))));
}

TEST_P(TierConformance, BuffersOfAnotherLengthAreNamed) {
  using ::cairn::testing::StatusIs;
  const Extent extent = *tier_->Reserve(100);
  std::vector<std::byte> bytes(99);
  EXPECT_THAT(WriteAndWait(*tier_, extent, "", bytes),
              StatusIs(StatusCode::kInvalidArgument, ::testing::HasSubstr("'source': got 99")));
  EXPECT_THAT(
      ReadAndWait(*tier_, extent, bytes),
      StatusIs(StatusCode::kInvalidArgument, ::testing::HasSubstr("'destination': got 99")));
}

TEST_P(TierConformance, ExhaustionIsAValueAndReleaseReturnsRoom) {
  using ::cairn::testing::StatusIs;
  std::vector<Extent> extents;
  Status status;
  for (;;) {
    auto extent = tier_->Reserve(1 << 20);
    if (!extent.ok()) {
      status = extent.status();
      break;
    }
    extents.push_back(*extent);
    ASSERT_LE(extents.size(), 16u);
  }
  EXPECT_THAT(status, StatusIs(StatusCode::kResourceExhausted, ::testing::HasSubstr("16777216")));
  EXPECT_GE(extents.size(), 15u);
  tier_->Release(extents.back());
  extents.back() = *tier_->Reserve(1 << 20);
  for (const Extent& extent : extents) tier_->Release(extent);
  EXPECT_EQ(tier_->GetStats().used_bytes, 0u);
  EXPECT_EQ(tier_->GetStats().extents, 0u);
}

TEST_P(TierConformance, ExtentsAreDistinct) {
  std::set<uint64_t> ids;
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(ids.insert(tier_->Reserve(5000)->id).second);
}

TEST_P(TierConformance, MappedBytesAreTheBytes) {
  const Extent extent = Put(5, 50000);
  const std::span<std::byte> mapped = tier_->Map(extent);
  if (mapped.empty()) GTEST_SKIP() << "a tier without mapped memory";
  ASSERT_EQ(mapped.size(), extent.length);
  EXPECT_EQ(std::memcmp(mapped.data(), Pattern(5, 50000).data(), 50000), 0);
  mapped[17] ^= std::byte{1};
  std::vector<std::byte> bytes(extent.length);
  ASSERT_OK(ReadAndWait(*tier_, extent, bytes));
  EXPECT_EQ(bytes[17], mapped[17]);
}

TEST_P(TierConformance, ThreadsSeeTheirOwnBytes) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 60;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([this, t] {
      std::mt19937_64 rng(static_cast<uint64_t>(t));
      std::vector<std::pair<uint64_t, Extent>> mine;
      for (int round = 0; round < kRounds; ++round) {
        const auto length = static_cast<uint32_t>(1 + rng() % 300000);
        const uint64_t seed = static_cast<uint64_t>(t) * 1000 + static_cast<uint64_t>(round);
        auto extent = tier_->Reserve(length);
        if (extent.ok()) {
          ASSERT_OK(WriteAndWait(*tier_, *extent, "r", Pattern(seed, length)));
          mine.emplace_back(seed, *extent);
        } else {
          ASSERT_EQ(extent.status().code(), StatusCode::kResourceExhausted);
        }
        if (!mine.empty()) {
          const auto& [s, chosen] = mine[rng() % mine.size()];
          ExpectBytes(s, chosen);
        }
        if (mine.size() > 6) {
          tier_->Release(mine.front().second);
          mine.erase(mine.begin());
        }
      }
      for (const auto& [seed, extent] : mine) {
        ExpectBytes(seed, extent);
        tier_->Release(extent);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(tier_->GetStats().extents, 0u);
  EXPECT_EQ(tier_->GetStats().used_bytes, 0u);
}

// --- Persistent tiers
// -------------------------------------------------------------------------------------------------

TEST_P(TierConformance, ReservedAndReleasedExtentsHoldNothing) {
  if (!persistent_) GTEST_SKIP() << "not a persistent tier";
  using ::cairn::testing::StatusIs;
  std::vector<std::byte> bytes(100);
  const Extent reserved = *tier_->Reserve(100);
  EXPECT_THAT(ReadAndWait(*tier_, reserved, bytes), StatusIs(StatusCode::kNotFound, ::testing::_));
  const Extent released = Put(1, 100);
  tier_->Release(released);
  EXPECT_THAT(ReadAndWait(*tier_, released, bytes), StatusIs(StatusCode::kNotFound, ::testing::_));
  ASSERT_OK(WriteAndWait(*tier_, reserved, "", bytes));
  EXPECT_THAT(WriteAndWait(*tier_, reserved, "", bytes),
              StatusIs(StatusCode::kFailedPrecondition, ::testing::_));
}

TEST_P(TierConformance, RecoverComesOnce) {
  if (!persistent_) GTEST_SKIP() << "not a persistent tier";
  EXPECT_EQ(persistent_->Recover([](const Extent&, std::string_view) { return true; }).code(),
            StatusCode::kFailedPrecondition);
}

TEST_P(TierConformance, MetaIsListedByName) {
  if (!persistent_) GTEST_SKIP() << "not a persistent tier";
  ASSERT_OK(persistent_->PutMeta("b", "2"));
  ASSERT_OK(persistent_->PutMeta("a", std::string("1\0x", 3)));
  ASSERT_OK(persistent_->PutMeta("c", ""));
  ASSERT_OK(persistent_->PutMeta("b", "3"));
  ASSERT_OK(persistent_->DeleteMeta("c"));
  ASSERT_OK(persistent_->DeleteMeta("never there"));
  std::vector<std::pair<std::string, std::string>> all;
  ASSERT_OK(persistent_->ListMeta(
      [&](std::string_view name, std::string_view value) { all.emplace_back(name, value); }));
  using P = std::pair<std::string, std::string>;
  EXPECT_THAT(all, ::testing::ElementsAre(P("a", std::string("1\0x", 3)), P("b", "3")));
}

}  // namespace cairn::cache::conformance
