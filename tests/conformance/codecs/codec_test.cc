// Every codec on every backend that runs inline: the same bytes as the definition, bounded error,
// no byte outside, NaN refused, any bytes decoded safely.

#include <algorithm>
#include <tuple>

#include "tests/conformance/codecs/case.h"
#include "tests/conformance/kernels/device.h"

namespace cairn::codecs {
namespace {

using testing::CodecCase;
using testing::DecodeSlice;
using testing::EncodeSlice;
using testing::RelativeError;
using testing::TestSlice;

// Tokens, heads, dimensions; what a codec refuses is skipped per shape (and must be refused by
// all).
const SliceShape kShapes[] = {
    {64, 3, 64, 3, 64}, {64, 2, 128, 2, 128}, {16, 1, 256, 1, 256}, {1, 1, 64, 1, 64},
    {0, 2, 64, 2, 64},  {33, 1, 64, 2, 128},  {256, 1, 512, 1, 64}, {17, 2, 96, 2, 96},
    {5, 1, 80, 1, 80},  {64, 3, 64, 0, 0},    {64, 0, 0, 1, 64},    {31, 5, 16, 5, 48},
};

class CodecTest : public ::testing::TestWithParam<std::tuple<CodecCase, std::string>> {
 protected:
  void SetUp() override {
    const std::string why =
        kernels::testing::WhySkippedOnHost(backend(), &kernels::Backend::codecs);
    if (!why.empty()) GTEST_SKIP() << why;
    codec_ = MakeCodec(test().name, test().values, *kernels::FindBackend(backend())->codecs);
    reference_ = MakeCodec(test().name, test().values, kernels::ReferenceCodecKernels());
    ASSERT_NE(codec_, nullptr);
    ASSERT_NE(reference_, nullptr);
  }
  const CodecCase& test() const { return std::get<0>(GetParam()); }
  const std::string& backend() const { return std::get<1>(GetParam()); }
  bool lossless() const { return test().name == "raw"; }

  std::unique_ptr<Codec> codec_, reference_;
};

TEST_P(CodecTest, GivesTheBytesOfTheDefinitionAndDecodesThemAlike) {
  int stored = 0;
  for (const SliceShape& shape : kShapes) {
    for (const SlicePlace& place : {SlicePlace{0, 0}, SlicePlace{5, 64}}) {
      for (const int64_t gap : {0, 7}) {
        ASSERT_EQ(codec_->Supports(shape, place), reference_->Supports(shape, place));
        if (!codec_->Supports(shape, place).empty()) continue;
        ++stored;
        TestSlice slice(shape, gap);
        slice.FillNormal(static_cast<uint32_t>(shape.tokens + gap));
        const std::vector<std::byte> got = EncodeSlice(*codec_, slice, place);
        ASSERT_EQ(got, EncodeSlice(*reference_, slice, place)) << shape.tokens << " tokens";

        TestSlice back(shape, gap), want(shape, 3);
        ASSERT_EQ(DecodeSlice(*codec_, got, &back, place), CodecStatus::kOk);
        ASSERT_EQ(DecodeSlice(*reference_, got, &want, place), CodecStatus::kOk);
        ASSERT_EQ(back.Numbers(), want.Numbers());
        ASSERT_TRUE(back.GuardsHold());
        if (shape.tokens * (shape.k_heads + shape.v_heads) > 0) {
          EXPECT_LE(RelativeError(slice, back), test().error);
        }
        TestSlice streamed(shape, gap);
        ASSERT_EQ(DecodeSlice(*codec_, got, &streamed, place, true), CodecStatus::kOk);
        EXPECT_EQ(streamed.Numbers(), want.Numbers());
        EXPECT_TRUE(streamed.GuardsHold());
      }
    }
  }
  EXPECT_GE(stored, 16) << "nearly all shapes were refused";
}

TEST_P(CodecTest, SmallLargeAndMixedMagnitudesMatchTheDefinition) {
  const SliceShape shape{32, 2, 64, 2, 64};
  std::mt19937 rng(11);
  for (const float spread : {0.0f, 1e-7f, 1e-5f, 1e-3f, 100.0f, 20000.0f, 65504.0f}) {
    TestSlice slice(shape, 0);
    slice.Each([&](uint16_t& x) {
      const float sign = rng() % 2 == 0 ? 1.0f : -1.0f;
      x = testing::ToHalf(spread == 65504.0f ? sign * spread : spread * std::sin(float(rng())));
    });
    for (const SlicePlace& place : {SlicePlace{3, 0}, SlicePlace{3, 32}}) {
      const std::vector<std::byte> got = EncodeSlice(*codec_, slice, place);
      ASSERT_EQ(got, EncodeSlice(*reference_, slice, place)) << "spread " << spread;
      TestSlice back(shape, 0), want(shape, 0);
      ASSERT_EQ(DecodeSlice(*codec_, got, &back, place), CodecStatus::kOk);
      ASSERT_EQ(DecodeSlice(*reference_, got, &want, place), CodecStatus::kOk);
      ASSERT_EQ(back.Numbers(), want.Numbers()) << "spread " << spread;
      for (const uint16_t x : back.Numbers()) ASSERT_LT(x & 0x7fff, 0x7c00) << "not finite";
    }
  }
}

TEST_P(CodecTest, RandomFiniteBitsMatchTheDefinition) {
  const SliceShape shape{64, 1, 64, 1, 64};
  for (uint32_t seed = 0; seed < 10; ++seed) {
    TestSlice slice(shape, 0);
    slice.FillBits(seed);
    slice.Each([](uint16_t& x) {
      if ((x & 0x7c00) == 0x7c00) x = static_cast<uint16_t>(x & ~0x4000);
    });
    const SlicePlace place{static_cast<int64_t>(seed), seed % 2 == 0 ? 0 : 64};
    const std::vector<std::byte> got = EncodeSlice(*codec_, slice, place);
    ASSERT_EQ(got, EncodeSlice(*reference_, slice, place)) << "seed " << seed;
    TestSlice back(shape, 0), want(shape, 0);
    ASSERT_EQ(DecodeSlice(*codec_, got, &back, place), CodecStatus::kOk);
    ASSERT_EQ(DecodeSlice(*reference_, got, &want, place), CodecStatus::kOk);
    ASSERT_EQ(back.Numbers(), want.Numbers()) << "seed " << seed;
  }
}

TEST_P(CodecTest, NanAndInfinityAreKeptOrRefusedWithTheirCount) {
  const SliceShape shape{64, 2, 64, 2, 64};
  for (const uint16_t bad : {0x7c00, 0xfc00, 0x7e00, 0xfe01}) {
    for (const size_t at : {0u, 63u, 64u, 4095u, 4096u, 8192u, 16383u}) {
      TestSlice slice(shape, 0);
      slice.FillNormal(1);
      size_t i = 0;
      slice.Each([&](uint16_t& x) { x = i++ == at || i == 10001 ? bad : x; });
      EncodeResult result;
      const std::vector<std::byte> bytes = EncodeSlice(*codec_, slice, {0, 0}, &result);
      if (lossless()) {
        TestSlice back(shape, 0);
        ASSERT_EQ(DecodeSlice(*codec_, bytes, &back, {0, 0}), CodecStatus::kOk);
        EXPECT_EQ(back.Numbers(), slice.Numbers());
      } else {
        EXPECT_EQ(result.status, CodecStatus::kNonFinite) << "number " << at;
        EXPECT_EQ(result.non_finite, 2);
      }
    }
  }
}

TEST_P(CodecTest, OtherLengthsAndRandomBytesAreSafe) {
  const SliceShape shape{24, 2, 64, 1, 64};
  const SlicePlace place{1, 0};
  TestSlice slice(shape, 5);
  slice.FillNormal(3);
  std::vector<std::byte> good = EncodeSlice(*codec_, slice, place);
  if (codec_->FixedSize()) {
    for (const size_t length : {size_t{0}, size_t{1}, good.size() / 2, good.size() - 1}) {
      TestSlice back(shape, 5);
      EXPECT_EQ(DecodeSlice(*codec_, std::span(good).first(length), &back, place),
                CodecStatus::kCorrupt);
      EXPECT_TRUE(back.GuardsHold());
    }
    std::vector<std::byte> longer = good;
    longer.push_back({});
    TestSlice back(shape, 5);
    EXPECT_EQ(DecodeSlice(*codec_, longer, &back, place), CodecStatus::kCorrupt);
  }
  std::mt19937 rng(9);
  for (int i = 0; i < 60; ++i) {
    std::vector<std::byte> bytes = good;
    for (int n = 0; n < (i % 2 == 0 ? 3 : 20000); ++n) {
      bytes[rng() % bytes.size()] = static_cast<std::byte>(rng());
    }
    TestSlice back(shape, 5), want(shape, 5);
    const CodecStatus status = DecodeSlice(*codec_, bytes, &back, place);
    EXPECT_EQ(status, DecodeSlice(*reference_, bytes, &want, place));
    EXPECT_TRUE(back.GuardsHold());
    if (status == CodecStatus::kOk) {
      ASSERT_EQ(back.Numbers(), want.Numbers());
      if (!lossless()) {
        for (const uint16_t x : back.Numbers()) ASSERT_LT(x & 0x7fff, 0x7c00);
      }
    }
  }
}

TEST_P(CodecTest, TooLittleRoomIsRefused) {
  const SliceShape shape{16, 1, 64, 1, 64};
  TestSlice slice(shape, 0);
  slice.FillNormal(1);
  std::vector<std::byte> out(codec_->MaxEncodedBytes(shape, {0, 0}) - 1);
  std::vector<std::byte> scratch = testing::ScratchOf(*codec_, shape);
  EXPECT_EQ(codec_->Encode(slice.k(), slice.v(), 16, {0, 0}, out, scratch).status,
            CodecStatus::kTooSmall);
}

TEST_P(CodecTest, ShapesOutOfRangeAreRefused) {
  for (const SliceShape& shape : {SliceShape{-1, 1, 64, 1, 64}, SliceShape{1 << 20, 1, 64, 1, 64},
                                  SliceShape{64, -1, 64, 1, 64}, SliceShape{64, 1 << 20, 64, 1, 64},
                                  SliceShape{64, 1, 0, 1, 64}, SliceShape{64, 1, 64, 1, 1024}}) {
    EXPECT_NE(codec_->Supports(shape, {0, 0}), "");
    EXPECT_EQ(codec_->Decode({}, {nullptr, shape.k_heads, shape.k_dim, 0, 0},
                             {nullptr, shape.v_heads, shape.v_dim, 0, 0}, shape.tokens, {0, 0}, {}),
              CodecStatus::kUnsupported);
  }
}

std::string CaseName(const ::testing::TestParamInfo<std::tuple<CodecCase, std::string>>& info) {
  std::string label = std::get<0>(info.param).Label() + "_" + std::get<1>(info.param);
  for (char& c : label) c = c == '-' ? '_' : c;
  return label;
}

INSTANTIATE_TEST_SUITE_P(All, CodecTest,
                         ::testing::Combine(::testing::ValuesIn(testing::AllCases()),
                                            ::testing::ValuesIn(kernels::testing::BackendNames())),
                         CaseName);

}  // namespace
}  // namespace cairn::codecs
