#include "services/cache/store/block/part_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "common/status/matchers.h"
#include "services/cache/store/block/pool_grid.h"

namespace cairn::cache {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

Layout Native() {
  Layout layout;
  layout.block_tokens = 16;
  layout.form = NativeLayout{
      .groups = {{.count = 4, .planes = {{"k", 2, 8, DType::kF16}, {"v", 2, 8, DType::kF16}}}},
      .kv_heads = 2};
  return layout;
}

std::vector<std::byte> MakePart(const Layout& layout, const format::PartRect& rect) {
  std::vector<uint64_t> lengths;
  for (uint32_t l = rect.layer_begin; l < rect.layer_end; ++l) {
    lengths.push_back(layout.SliceBytes(l, rect.head_begin, rect.head_end));
  }
  std::vector<std::byte> part(format::PartBytes(lengths), std::byte{3});
  format::SealPart(part, format::Codec::kRaw, rect, static_cast<uint16_t>(layout.block_tokens),
                   lengths);
  return part;
}

TEST(PartGridTest, PartsFitOnlyWhereNothingIs) {
  const std::vector<format::PartRect> taken{{0, 2, 0, 1}, {0, 2, 1, 2}};
  EXPECT_EQ(FitPart({2, 4, 0, 2}, taken), PartFit::kFree);
  EXPECT_EQ(FitPart({0, 2, 0, 2}, taken), PartFit::kCovered);
  EXPECT_EQ(FitPart({0, 1, 0, 1}, taken), PartFit::kCovered);
  EXPECT_EQ(FitPart({1, 3, 0, 2}, taken), PartFit::kOverlaps);
}

// Against a walk over the layers, which the check of a part must not make.
TEST(LayerSizesTest, SumsWhatTheLayersHave) {
  std::mt19937 random(1);
  const auto any = [&](uint32_t least, uint32_t most) {
    return least + static_cast<uint32_t>(random() % (most - least + 1));
  };
  for (int round = 0; round < 50; ++round) {
    Layout layout;
    layout.block_tokens = 16;
    NativeLayout native{.groups = {}, .kv_heads = 4};
    for (uint32_t g = any(1, 8); g > 0; --g) {
      LayerGroup group{.count = any(1, 5), .planes = {}};
      for (uint32_t p = any(0, 3); p > 0; --p) {
        group.planes.push_back({"p", any(0, 1) == 0 ? 4u : any(1, 3), any(1, 9), DType::kF16});
      }
      native.groups.push_back(group);
    }
    layout.form = native;
    const LayerSizes sizes(layout);
    for (int i = 0; i < 50; ++i) {
      format::PartRect rect;
      rect.layer_begin = static_cast<uint16_t>(any(0, layout.Layers() - 1));
      rect.layer_end = static_cast<uint16_t>(any(rect.layer_begin + 1u, layout.Layers()));
      rect.head_begin = static_cast<uint16_t>(any(0, 3));
      rect.head_end = static_cast<uint16_t>(any(rect.head_begin + 1u, 4));
      LayerSizes::Total expected;
      for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
        const uint64_t bytes = layout.SliceBytes(layer, rect.head_begin, rect.head_end);
        EXPECT_EQ(sizes.From(layer).front().SliceBytes(rect.head_begin, rect.head_end), bytes);
        expected.bytes += bytes;
        expected.layers += bytes > 0;
      }
      const LayerSizes::Total total = sizes.Of(rect);
      EXPECT_EQ(total.bytes, expected.bytes);
      EXPECT_EQ(total.layers, expected.layers);
    }
  }
}

TEST(PartGridTest, CompleteMeansThatAllCellsAreCovered) {
  const PoolGrid grid(format::PartRect{0, 4, 0, 2});
  EXPECT_TRUE(
      grid.AreWhole(std::vector<format::PartRect>{{0, 2, 0, 2}, {2, 4, 0, 1}, {2, 4, 1, 2}}));
  EXPECT_FALSE(grid.AreWhole(std::vector<format::PartRect>{{0, 2, 0, 2}, {2, 4, 0, 1}}));
  EXPECT_FALSE(grid.AreWhole({}));
}

Layout Pooled() {
  Layout layout;
  layout.block_tokens = 16;
  layout.form = OpaqueLayout{.description = "engine",
                             .pools = {{"full", 16, 2, 1000, true},
                                       {"window", 32, 1, 2000, false},
                                       {"state", 64, 3, 10, false}}};
  return layout;
}

TEST(PoolGridTest, ABlockIsWholeWithTheColumnsOfItsPool) {
  const PoolGrid grid(Pooled());
  EXPECT_EQ(grid.pools(), 3u);
  EXPECT_TRUE(grid.AreWhole(std::vector<format::PartRect>{{0, 1, 0, 1}, {0, 1, 1, 2}}));
  EXPECT_TRUE(grid.AreWhole(std::vector<format::PartRect>{{1, 2, 0, 1}}));
  EXPECT_FALSE(grid.AreWhole(std::vector<format::PartRect>{{2, 3, 0, 1}, {2, 3, 2, 3}}));
  // As many cells as the pool has, but not of it.
  EXPECT_FALSE(grid.AreWhole(std::vector<format::PartRect>{{0, 1, 0, 1}, {1, 2, 0, 1}}));
  EXPECT_TRUE(grid.IsChained(0));
  EXPECT_FALSE(grid.IsChained(2));
  EXPECT_EQ(grid.WholeOf(2), (format::PartRect{2, 3, 0, 3}));
}

TEST(PoolGridTest, APartLiesWithinOnePool) {
  const PoolGrid grid(Pooled());
  EXPECT_TRUE(grid.Contains({2, 3, 2, 3}));
  EXPECT_FALSE(grid.Contains({1, 2, 1, 2})) << "a column that the pool has not";
  EXPECT_FALSE(grid.Contains({0, 2, 0, 1})) << "two pools";
  EXPECT_FALSE(grid.Contains({3, 4, 0, 1})) << "no pool";
  EXPECT_FALSE(PoolGrid(format::PartRect{0, 4, 0, 2}).Contains({3, 5, 0, 1}));
}

TEST(PartGridTest, PartsOfAPoolHaveItsSizesAndTokens) {
  const Layout layout = Pooled();
  const PartForm form{layout, format::Codec::kOpaque};
  EXPECT_OK(ValidatePart(form, {1, 2, 0, 1}, 128 + 2000, 1 << 20));
  EXPECT_THAT(ValidatePart(form, {1, 2, 0, 1}, 128 + 2001, 1 << 20),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("got 2129, expected 129 to 2128")));
  EXPECT_THAT(ValidatePart(form, {1, 2, 1, 2}, 200, 1 << 20),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("a part of pool 'window'")));
  EXPECT_THAT(ValidatePart(form, {0, 2, 0, 1}, 200, 1 << 20),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("a part of pool 'full'")));
  EXPECT_THAT(ValidatePart(form, {3, 4, 0, 1}, 200, 1 << 20),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("layers [3, 4)")));
  const auto sealed = [](uint16_t tokens) {
    const std::vector<uint64_t> lengths = {1000};
    std::vector<std::byte> part(format::PartBytes(lengths), std::byte{3});
    format::SealPart(part, format::Codec::kOpaque, {1, 2, 0, 1}, tokens, lengths);
    return part;
  };
  EXPECT_OK(VerifyPartBytes(form, {1, 2, 0, 1}, sealed(32)));
  EXPECT_THAT(VerifyPartBytes(form, {1, 2, 0, 1}, sealed(16)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("got 16, expected 32")));
}

TEST(PartGridTest, SelectedRowsAreAcceptedWhereTheRecipeSelects) {
  const Layout layout = Native();
  const format::PartRect rect{1, 3, 0, 2};
  // Two masks a layer, then what was kept: nothing, and five rows of one head.
  const std::vector<uint64_t> lengths = {16, 16 + 5 * 2 * 8 * 2};
  std::vector<std::byte> part(format::PartBytes(lengths));
  format::SealPart(part, format::Codec::kRaw, rect, 16, lengths, /*selected=*/true);
  const PartForm selects{layout, format::Codec::kRaw, std::nullopt, /*selected=*/true};
  EXPECT_OK(ValidatePart(selects, rect, part.size(), 1 << 20));
  EXPECT_OK(VerifyPartBytes(selects, rect, part));
  EXPECT_THAT(VerifyPartBytes({layout}, rect, part),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("has no selection")));
  EXPECT_THAT(VerifyPartBytes(selects, {0, 4, 0, 2}, MakePart(layout, {0, 4, 0, 2})),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'flags': got 0, expected 1")));
  // Less than the masks, more than all rows.
  EXPECT_THAT(
      ValidatePart(selects, rect, format::PartBytes(std::vector<uint64_t>{16, 15}), 1 << 20),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("field 'bytes'")));
  const uint64_t most = 16 + 10 + 2 * 2 * 16 * 8 * 2;
  EXPECT_OK(
      ValidatePart(selects, rect, format::PartBytes(std::vector<uint64_t>{most, most}), 1 << 20));
  EXPECT_THAT(ValidatePart(selects, rect, format::PartBytes(std::vector<uint64_t>{most, most + 1}),
                           1 << 20),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("field 'bytes'")));
}

TEST(PartGridTest, SizesAndRectanglesAreCheckedAgainstTheLayout) {
  const Layout layout = Native();
  const auto part = MakePart(layout, layout.WholeRect());
  EXPECT_OK(ValidatePart({layout}, layout.WholeRect(), part.size(), 1 << 20));
  EXPECT_THAT(ValidatePart({layout}, layout.WholeRect(), part.size() + 1, 1 << 20),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("bytes")));
  EXPECT_THAT(ValidatePart({layout}, {0, 5, 0, 2}, part.size(), 1 << 20),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("layers [0, 5)")));
  EXPECT_THAT(ValidatePart({layout}, {0, 4, 1, 1}, part.size(), 1 << 20),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("heads")));
  EXPECT_THAT(ValidatePart({layout}, layout.WholeRect(), part.size(), 100),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("100")));
}

TEST(PartGridTest, BytesMustBeWhatWasReserved) {
  const Layout layout = Native();
  auto part = MakePart(layout, layout.WholeRect());
  EXPECT_OK(VerifyPartBytes({layout}, layout.WholeRect(), part));
  EXPECT_THAT(VerifyPartBytes({layout}, {0, 4, 0, 1}, part),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("heads")));
  Layout other = layout;
  other.block_tokens = 32;
  EXPECT_THAT(VerifyPartBytes({other}, layout.WholeRect(), part),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("block_tokens")));
  part.back() ^= std::byte{1};
  EXPECT_THAT(VerifyPartBytes({layout}, layout.WholeRect(), part),
              StatusIs(StatusCode::kDataLoss, HasSubstr("layer 3")));
}

TEST(PartGridTest, OpaquePartsHoldOneHeadUpToTheDeclaredSize) {
  Layout layout;
  layout.block_tokens = 16;
  layout.form = OpaqueLayout{.description = "x", .max_part_bytes = 1000, .parts = 2};
  const uint64_t header = format::HeaderBytes(1);
  EXPECT_OK(ValidatePart({layout}, {0, 1, 1, 2}, header + 1000, 1 << 20));
  EXPECT_FALSE(ValidatePart({layout}, {0, 1, 1, 2}, header + 1001, 1 << 20).ok());
  EXPECT_FALSE(ValidatePart({layout}, {0, 1, 1, 2}, header, 1 << 20).ok());
  EXPECT_FALSE(ValidatePart({layout}, {0, 1, 0, 2}, header + 1000, 1 << 20).ok());
}

}  // namespace
}  // namespace cairn::cache
