#include "tools/cairn/bench/block_set.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "common/status/matchers.h"

namespace cairn::cli::bench {
namespace {

using cairn::testing::StatusIs;
using ::testing::HasSubstr;

std::shared_ptr<const BlockSet> MakeSet(uint32_t blocks = 4, uint32_t layers = 2) {
  auto set = BlockSet::Make({.block_bytes = 4096, .layers = layers, .blocks = blocks});
  EXPECT_OK(set);
  return *set;
}

TEST(BlockSetTest, PartsAreSealedAndDiffer) {
  const auto set = MakeSet();
  std::set<std::string> seen;
  for (uint32_t i = 0; i < set->blocks(); ++i) {
    const auto header = format::VerifyPart(set->Part(i));
    ASSERT_OK(header);
    EXPECT_EQ(header->slices.size(), 2u);
    EXPECT_EQ(set->Payload(i).size(), 4096u);
    seen.emplace(reinterpret_cast<const char*>(set->Payload(i).data()), 4096);
  }
  EXPECT_EQ(seen.size(), 4u);
}

TEST(BlockSetTest, EachGenerationHasKeysOfItsOwn) {
  const auto set = MakeSet();
  std::set<BlockKey> keys;
  for (uint64_t generation = 0; generation < 8; ++generation) {
    for (const BlockKey& key : set->Keys(generation, 0, 4)) keys.insert(key);
  }
  EXPECT_EQ(keys.size(), 32u);
  EXPECT_EQ(set->Key(3, 2), MakeSet()->Key(3, 2)) << "another process finds the same blocks";
}

TEST(BlockSetTest, ChainsHaveParentsInsideOnly) {
  const auto set = MakeSet(6);
  const auto parts = set->ToPush(1, 1, 6, 3);
  ASSERT_EQ(parts.size(), 5u);
  EXPECT_EQ(parts[0].parent, set->Key(1, 0));
  EXPECT_EQ(parts[2].parent, std::nullopt) << "block 3 begins a chain";
  EXPECT_EQ(parts[2].first_position, 0u);
  EXPECT_EQ(parts[4].first_position, 128u);
}

TEST(BlockSetTest, SizesThatNoLayoutHasAreRefused) {
  EXPECT_THAT(BlockSet::Make({.block_bytes = 100, .layers = 1, .blocks = 1}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("100 bytes")));
  EXPECT_THAT(BlockSet::Make({.block_bytes = 1 << 30, .layers = 1, .blocks = 1}),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("8388608")));
}

TEST(MemorySinkTest, OneWrongByteIsFound) {
  const auto set = MakeSet(2);
  std::vector<std::byte> memory(2 * 4096);
  MemorySink sink(memory, 4096);
  for (uint32_t block = 0; block < 2; ++block) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      client::SliceInfo slice{.block = block, .layer = layer, .slice_bytes = 2048};
      const auto to = sink.Destination(slice);
      const auto from = set->Payload(block).subspan(layer * 2048, 2048);
      std::memcpy(to.data(), from.data(), to.size());
      ASSERT_OK(sink.OnSlice(slice, to));
    }
  }
  EXPECT_OK(sink.Check(8192));
  EXPECT_THAT(sink.Check(8193), StatusIs(StatusCode::kDataLoss, HasSubstr("8192 bytes came")));
  EXPECT_OK(ComparePayload(*set, 0, 2, memory));
  memory[4096 + 77] ^= std::byte{1};
  EXPECT_THAT(ComparePayload(*set, 0, 2, memory),
              StatusIs(StatusCode::kDataLoss, HasSubstr("block 1")));
}

TEST(MemorySinkTest, ABlockThatFailedIsAnError) {
  std::vector<std::byte> memory(4096);
  MemorySink sink(memory, 4096);
  sink.OnBlockFailed(0, client::MissReason::kCorrupt);
  EXPECT_THAT(sink.Check(0), StatusIs(StatusCode::kNotFound, HasSubstr("corrupt")));
}

TEST(MemorySinkTest, SlicesOutsideTheMemoryAreRefused) {
  std::vector<std::byte> memory(4096);
  MemorySink sink(memory, 4096);
  const std::vector<std::byte> data(4096);
  EXPECT_THAT(sink.OnSlice({.block = 1, .slice_bytes = 4096}, data),
              StatusIs(StatusCode::kInternal, HasSubstr("block 1")));
}

}  // namespace
}  // namespace cairn::cli::bench
