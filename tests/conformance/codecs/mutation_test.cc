// Mistakes that leave checksums right and must still be seen: heads swapped, positions shifted, the
// sink dropped, keys and values confused, the next layer's tables. Each must change bytes or raise
// the error, so that the fixtures notice it.

#include <algorithm>

#include "tests/conformance/codecs/case.h"

namespace cairn::codecs {
namespace {

using testing::CodecCase;
using testing::DecodeSlice;
using testing::EncodeSlice;
using testing::RelativeError;
using testing::TestSlice;

const SliceShape kShape{64, 2, 64, 2, 64};

class MutationTest : public ::testing::TestWithParam<CodecCase> {
 protected:
  MutationTest() : codec_(MakeCodec(GetParam().name, GetParam().values)), slice_(kShape, 0) {
    slice_.FillNormal(17);
    // Values are smaller than keys, the second head than the first, and the first token than all.
    size_t i = 0;
    slice_.Each([&](uint16_t& x) {
      const size_t token = i / 64 % 64, head = i / 4096 % 2, plane = i / 8192;
      ++i;
      const float scale =
          (plane == 0 ? 4.0f : 1.0f) * (head == 0 ? 1.0f : 0.25f) * (token == 0 ? 0.05f : 1.0f);
      x = testing::ToHalf(testing::FromHalf(x) * scale);
    });
  }
  bool has_sink() const { return GetParam().name != "raw" && GetParam().values.back() == 1; }
  double Error(std::span<const std::byte> bytes, const SlicePlace& place) {
    TestSlice back(kShape, 0);
    if (DecodeSlice(*codec_, bytes, &back, place) != CodecStatus::kOk) return INFINITY;
    return RelativeError(slice_, back);
  }

  std::unique_ptr<Codec> codec_;
  TestSlice slice_;
};

TEST_P(MutationTest, SwappedHeadsAreNotTheSlice) {
  const std::vector<std::byte> bytes = EncodeSlice(*codec_, slice_, {2, 0});
  Plane k = slice_.k(), v = slice_.v();
  k.data += k.head_stride;
  k.head_stride = -k.head_stride;
  std::vector<std::byte> swapped(codec_->MaxEncodedBytes(kShape, {2, 0}));
  std::vector<std::byte> scratch = testing::ScratchOf(*codec_, kShape);
  const EncodeResult done = codec_->Encode(k, v, 64, {2, 0}, swapped, scratch);
  ASSERT_EQ(done.status, CodecStatus::kOk);
  swapped.resize(done.bytes);
  EXPECT_NE(swapped, bytes);
  EXPECT_GT(Error(swapped, {2, 0}), 0.9);
}

TEST_P(MutationTest, SwappedPlanesAreNotTheSlice) {
  const std::vector<std::byte> bytes = EncodeSlice(*codec_, slice_, {2, 0});
  std::vector<std::byte> swapped(codec_->MaxEncodedBytes(kShape, {2, 0}));
  std::vector<std::byte> scratch = testing::ScratchOf(*codec_, kShape);
  const EncodeResult done = codec_->Encode(slice_.v(), slice_.k(), 64, {2, 0}, swapped, scratch);
  ASSERT_EQ(done.status, CodecStatus::kOk);
  swapped.resize(done.bytes);
  EXPECT_GT(Error(swapped, {2, 0}), 0.9);
}

TEST_P(MutationTest, TokensShiftedByOneAreNotTheSlice) {
  // The last token of the last head is then one of the guards behind the slice.
  Plane k = slice_.k(), v = slice_.v();
  k.data += k.token_stride;
  v.data += v.token_stride;
  std::vector<std::byte> shifted(codec_->MaxEncodedBytes(kShape, {2, 0}));
  std::vector<std::byte> scratch = testing::ScratchOf(*codec_, kShape);
  const EncodeResult done = codec_->Encode(k, v, 64, {2, 0}, shifted, scratch);
  ASSERT_EQ(done.status, CodecStatus::kOk);
  shifted.resize(done.bytes);
  EXPECT_GT(Error(shifted, {2, 0}), 0.9);
}

TEST_P(MutationTest, SwappedScalesOfKeysAndValuesAreNotTheSlice) {
  const CodecCase& test = GetParam();
  const bool turbo = test.name == "turbo" && test.values[0] == test.values[1];
  // In others not every row, of keys as of values, begins with its scales: the fixtures pin them.
  if (!turbo && test.name != "int8" && test.name != "fp8") return;
  const size_t scales =
      test.name == "int8" ? static_cast<size_t>(std::max<int64_t>(1, 64 / test.values[0])) : 1;
  std::vector<std::byte> bytes = EncodeSlice(*codec_, slice_, {2, 64});
  EXPECT_LT(Error(bytes, {2, 64}), 0.4);
  const size_t rows = 2 * 64;  // The rows of a plane.
  const size_t row = bytes.size() / (2 * rows);
  for (size_t i = 0; i < rows; ++i) {
    std::byte* const key = bytes.data() + i * row;
    std::swap_ranges(key, key + 2 * scales, key + rows * row);
  }
  EXPECT_GT(Error(bytes, {2, 64}), 0.7);
}

TEST_P(MutationTest, AShiftedPositionLosesTheSink) {
  const std::vector<std::byte> first = EncodeSlice(*codec_, slice_, {2, 0});
  const std::vector<std::byte> later = EncodeSlice(*codec_, slice_, {2, 1});
  if (!has_sink()) {
    EXPECT_EQ(first, later);
    return;
  }
  EXPECT_NE(first.size(), later.size());
  EXPECT_EQ(Error(first, {2, 1}), INFINITY);
  EXPECT_EQ(Error(later, {2, 0}), INFINITY);
  TestSlice with(kShape, 0), without(kShape, 0);
  ASSERT_EQ(DecodeSlice(*codec_, first, &with, {2, 0}), CodecStatus::kOk);
  ASSERT_EQ(DecodeSlice(*codec_, later, &without, {2, 1}), CodecStatus::kOk);
  const std::vector<uint16_t> x = slice_.Numbers(), a = with.Numbers(), b = without.Numbers();
  EXPECT_TRUE(std::equal(x.begin(), x.begin() + 64, a.begin())) << "the sink is exact";
  EXPECT_FALSE(std::equal(x.begin(), x.begin() + 64, b.begin()));
}

TEST_P(MutationTest, AnUnknownPositionIsRefusedWhereTheSinkNeedsIt) {
  EXPECT_EQ(codec_->Supports(kShape, {2, -1}).empty(), !has_sink());
}

TEST_P(MutationTest, TheNextLayersTableDecodesToNoise) {
  const std::vector<std::byte> bytes = EncodeSlice(*codec_, slice_, {2, 64});
  if (GetParam().name != "turbo") return;  // Others have no tables.
  EXPECT_LT(Error(bytes, {2, 64}), 0.4);
  EXPECT_GT(Error(bytes, {3, 64}), 0.9);
}

// A block encoded alone, in a batch, in reverse order: the same bytes.
TEST_P(MutationTest, OrderOfCallsDoesNotMatter) {
  std::vector<TestSlice> slices;
  std::vector<std::vector<std::byte>> bytes;
  for (uint32_t i = 0; i < 4; ++i) {
    slices.emplace_back(kShape, 0).FillNormal(i);
    bytes.push_back(EncodeSlice(*codec_, slices.back(), {i, 64 * i}));
  }
  for (uint32_t i = 4; i-- > 0;) {
    EXPECT_EQ(EncodeSlice(*codec_, slices[i], {i, 64 * i}), bytes[i]);
  }
}

std::string CaseName(const ::testing::TestParamInfo<CodecCase>& test) { return test.param.Label(); }

INSTANTIATE_TEST_SUITE_P(All, MutationTest, ::testing::ValuesIn(testing::AllCases()), CaseName);

}  // namespace
}  // namespace cairn::codecs
