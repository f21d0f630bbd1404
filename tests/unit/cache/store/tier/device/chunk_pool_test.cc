#include "services/cache/store/tier/device/chunk_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::cache {
namespace {

constexpr uint64_t kChunk = 64 << 10;

// A chunk more for the tenant, as its owner does it.
std::optional<uint32_t> Grow(ChunkPool& pool, std::string_view tenant) {
  const auto claimed = pool.Claim(tenant);
  if (!claimed) return std::nullopt;
  pool.Assign(claimed->chunk, tenant);
  return claimed->chunk;
}

TEST(ChunkPoolTest, RoomComesOfTheTenantsOwnChunks) {
  ChunkPool pool(2, kChunk);
  EXPECT_EQ(pool.Reserve("a", 1), std::nullopt);
  EXPECT_EQ(Grow(pool, "a"), 0u);
  EXPECT_EQ(pool.Reserve("b", 1), std::nullopt);
  const auto first = pool.Reserve("a", 5000);
  const auto second = pool.Reserve("a", 4096);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(second->offset, 8192u);
  EXPECT_EQ(pool.used_bytes(), 3u * 4096);
  pool.Release(*first, 5000);
  EXPECT_EQ(pool.extents(), 1u);
}

TEST(ChunkPoolTest, AChunkWithExtentsOrSessionsStaysWithItsTenant) {
  ChunkPool pool(1, kChunk);
  Grow(pool, "a");
  const auto range = pool.Reserve("a", 100);
  EXPECT_EQ(pool.Claim("b"), std::nullopt);
  pool.AddSession(0);
  pool.Release(*range, 100);
  EXPECT_EQ(pool.Claim("b"), std::nullopt);
  EXPECT_EQ(pool.shared_chunks(), 1u);
  pool.RemoveSession(0);
  const auto claimed = pool.Claim("b");
  ASSERT_TRUE(claimed);
  EXPECT_TRUE(claimed->used);
  EXPECT_EQ(pool.Reserve("a", 1), std::nullopt) << "it is nobody's while it is claimed";
  EXPECT_EQ(pool.Claim("a"), std::nullopt);
  pool.Assign(0, "b");
  EXPECT_TRUE(pool.Reserve("b", kChunk));
}

TEST(ChunkPoolTest, FreeChunksGoBeforeThoseOfOthers) {
  ChunkPool pool(3, kChunk);
  EXPECT_EQ(Grow(pool, "a"), 0u);
  EXPECT_EQ(pool.Claim("b")->chunk, 1u);
  pool.Unclaim(1, /*has_memory=*/true);
  EXPECT_EQ(Grow(pool, "b"), 1u);
  EXPECT_EQ(Grow(pool, "c"), 2u);
  EXPECT_EQ(Grow(pool, "c"), 0u) << "the first one is empty";
  EXPECT_EQ(pool.chunks_of("a"), 0u);
}

TEST(ChunkPoolTest, ATenantWithLessThanItsShareMayHaveAChunkOfTheRichestEmptied) {
  ChunkPool pool(4, kChunk);
  for (int i = 0; i < 3; ++i) Grow(pool, "a");
  Grow(pool, "b");
  for (int i = 0; i < 3; ++i) pool.Reserve("a", kChunk - (i == 1 ? 4096 : 0));
  EXPECT_TRUE(pool.HasLessThanItsShare("b"));
  EXPECT_FALSE(pool.HasLessThanItsShare("a"));
  EXPECT_EQ(pool.ChunkToEmpty("b"), 1u) << "the one in which the least is reserved";
  pool.AddSession(1);
  EXPECT_NE(pool.ChunkToEmpty("b"), 1u);
  EXPECT_TRUE(pool.HasLessThanItsShare("c"));
}

TEST(ChunkPoolTest, OneTenantAloneTakesEverything) {
  ChunkPool pool(2, kChunk);
  Grow(pool, "a");
  Grow(pool, "a");
  EXPECT_FALSE(pool.HasLessThanItsShare("a"));
  EXPECT_EQ(pool.Claim("a"), std::nullopt);
}

}  // namespace
}  // namespace cairn::cache
