#include "services/router/engine/piece_cache.h"

#include <gtest/gtest.h>

namespace cairn::router {
namespace {

PieceCache::Tokens Tokens(size_t count) {
  return std::make_shared<const std::vector<model::TokenId>>(count, 7);
}
std::string Text(char letter) { return std::string(1000, letter); }

TEST(PieceCacheTest, KeepsWhatWasUsedLastWithinItsBytes) {
  PieceCache cache(16'000);
  for (char letter = 'a'; letter < 'a' + 20; ++letter) {
    cache.Add(Text(letter), Tokens(100));
    EXPECT_NE(cache.Find(Text('a')), nullptr) << "used again and again";
    EXPECT_LE(cache.numbers().bytes, 16'000u);
  }
  EXPECT_EQ(cache.Find(Text('b')), nullptr);
  ASSERT_NE(cache.Find(Text('a' + 19)), nullptr);
  EXPECT_EQ(cache.Find(Text('a' + 19))->size(), 100u);
}

TEST(PieceCacheTest, ShortTextsAndOnesThatWouldEvictAllOthersAreNotKept) {
  PieceCache cache(16'000);
  cache.Add("short", Tokens(1));
  EXPECT_EQ(cache.Find("short"), nullptr);
  cache.Add(std::string(10'000, 'x'), Tokens(100));
  EXPECT_EQ(cache.numbers().bytes, 0u);
  PieceCache off(0);
  off.Add(Text('a'), Tokens(1));
  EXPECT_EQ(off.Find(Text('a')), nullptr);
}

}  // namespace
}  // namespace cairn::router
