#include "services/cache/store/lease/written_ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace cairn::cache {
namespace {

TEST(WrittenRangesTest, PiecesInOrderAreOneRange) {
  WrittenRanges written;
  EXPECT_EQ(written.FirstMissing(), 0u);
  for (uint32_t at = 0; at < 1000; at += 10) {
    ASSERT_TRUE(written.Add(at, at + 10));
    EXPECT_EQ(written.FirstMissing(), at + 10);
  }
}

TEST(WrittenRangesTest, PiecesFromTheEndAreOneRange) {
  WrittenRanges written;
  for (uint32_t at = 1000; at > 0; at -= 10) {
    EXPECT_EQ(written.FirstMissing(), 0u);
    ASSERT_TRUE(written.Add(at - 10, at));
  }
  EXPECT_EQ(written.FirstMissing(), 1000u);
}

TEST(WrittenRangesTest, OneRangeMoreThanTheLimitIsRefusedAndClosedGapsMakePlace) {
  WrittenRanges written;
  const auto range = [](uint32_t i) { return std::pair(i * 4, i * 4 + 2); };
  for (uint32_t i = 0; i < WrittenRanges::kMaxRanges; ++i) {
    ASSERT_TRUE(written.Add(range(i).first, range(i).second));
  }
  const auto [begin, end] = range(WrittenRanges::kMaxRanges);
  EXPECT_FALSE(written.Add(begin, end));
  EXPECT_TRUE(written.Add(0, 2));  // It was written before.
  EXPECT_TRUE(written.Add(2, 4));  // Closes the first gap.
  EXPECT_EQ(written.FirstMissing(), 6u);
  EXPECT_TRUE(written.Add(begin, end));
  EXPECT_TRUE(written.Add(0, end + 10));
  EXPECT_EQ(written.FirstMissing(), end + 10);
}

TEST(WrittenRangesTest, AgreesWithASetOfBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    WrittenRanges written;
    std::string bytes(200, '.');
    for (int i = 0; i < 40; ++i) {
      const uint32_t begin = random() % 200;
      const uint32_t end = begin + random() % (1 + std::min<uint32_t>(30, 200 - begin));
      ASSERT_TRUE(written.Add(begin, end));
      bytes.replace(begin, end - begin, end - begin, 'x');
      const size_t missing = bytes.find('.');
      ASSERT_EQ(written.FirstMissing(), missing == std::string::npos ? 200 : missing);
    }
  }
}

}  // namespace
}  // namespace cairn::cache
