#include "services/cache/block/recoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/matchers.h"
#include "tests/unit/cache/block/encoded_parts.h"

namespace cairn::cache {
namespace {

using ::cairn::testing::StatusIs;
using testing::EncodedPart;
using testing::EncodedSpec;
using ::testing::HasSubstr;
using testing::SealSlices;

constexpr format::PartRect kWhole{0, 3, 0, 2};

std::unique_ptr<const Recoder> Make(const std::string& recipe) {
  auto recoder = Recoder::Create(EncodedSpec(recipe));
  EXPECT_OK(recoder);
  return recoder.ok() ? *std::move(recoder) : nullptr;
}

std::vector<std::byte> Recoded(const Recoder& recoder, const format::PartRect& rect,
                               const std::vector<std::byte>& part, bool at_start) {
  const auto buffer = recoder.Recode(rect, part, at_start);
  EXPECT_OK(buffer);
  if (!buffer.ok()) return {};
  return {buffer->bytes().begin(), buffer->bytes().end()};
}

TEST(RecoderTest, OnlyLaddersHaveOne) {
  const auto none = Recoder::Create(EncodedSpec("int8"));
  ASSERT_OK(none);
  EXPECT_EQ(*none, nullptr);
  EXPECT_NE(Make("host=int8>disk=turbo:bits=4"), nullptr);
}

TEST(RecoderTest, APartIsWhatItsNumbersAreInTheLowerCodec) {
  const auto recoder = Make("host=int8>disk=turbo:bits=4");
  for (const bool at_start : {true, false}) {
    const auto part = EncodedPart({"int8"}, 1, kWhole, at_start);
    const auto expected = EncodedPart({"int8", "turbo:bits=4"}, 1, kWhole, at_start);
    EXPECT_EQ(Recoded(*recoder, kWhole, part, at_start), expected);
    EXPECT_LT(expected.size(), part.size() * 6 / 10);
    EXPECT_EQ(expected.size(), recoder->MaxBlockBytes(at_start));
  }
  // The first token is kept apart.
  EXPECT_GT(recoder->MaxBlockBytes(true), recoder->MaxBlockBytes(false));
}

TEST(RecoderTest, RectanglesAreEncodedByThemselves) {
  const auto recoder = Make("host=raw>disk=int4");
  for (const format::PartRect rect :
       {format::PartRect{0, 3, 1, 2}, format::PartRect{2, 3, 0, 2}, format::PartRect{1, 2, 0, 1}}) {
    EXPECT_EQ(Recoded(*recoder, rect, EncodedPart({"raw"}, 2, rect, false), false),
              EncodedPart({"raw", "int4"}, 2, rect, false));
  }
}

TEST(RecoderTest, SizesThatFollowTheContentAreExact) {
  const auto recoder = Make("host=raw>disk=cachegen");
  const auto expected = EncodedPart({"raw", "cachegen"}, 3, kWhole, true);
  EXPECT_EQ(Recoded(*recoder, kWhole, EncodedPart({"raw"}, 3, kWhole, true), true), expected);
  EXPECT_LT(expected.size(), recoder->MaxBlockBytes(true));
  const NamespaceSpec spec = EncodedSpec("cachegen");
  EXPECT_OK(VerifyPartBytes({spec.layout, format::Codec::kCacheGen}, kWhole, expected));
}

TEST(RecoderTest, APartThatIsThereAlreadyStaysAsItIs) {
  const auto recoder = Make("host=int8>disk=turbo:bits=4");
  const auto lower = EncodedPart({"int8", "turbo:bits=4"}, 4, kWhole, false);
  EXPECT_TRUE(Recoded(*recoder, kWhole, lower, false).empty());
}

TEST(RecoderTest, DamagedBytesAreNotEncoded) {
  const auto recoder = Make("host=int8>disk=turbo:bits=4");
  const auto good = EncodedPart({"int8"}, 5, kWhole, false);
  auto slice = good;
  slice.back() ^= std::byte{1};
  EXPECT_THAT(
      recoder->Recode(kWhole, slice, false).status(),
      StatusIs(StatusCode::kDataLoss, HasSubstr("layer 2: bytes do not match their checksum")));
  auto header = good;
  header[40] ^= std::byte{1};
  EXPECT_THAT(recoder->Recode(kWhole, header, false).status(),
              StatusIs(StatusCode::kDataLoss, HasSubstr("header")));
  EXPECT_THAT(recoder->Recode({0, 2, 0, 2}, good, false).status(),
              StatusIs(StatusCode::kDataLoss, HasSubstr("layers")));
}

TEST(RecoderTest, SoundBytesThatNoEncoderWroteAreRefused) {
  const auto recoder = Make("host=int8>disk=turbo:bits=4");
  const std::vector<std::byte> junk(100, std::byte{0x7c});
  const auto part = SealSlices({junk, {}, junk}, format::Codec::kInt8, kWhole);
  EXPECT_THAT(recoder->Recode(kWhole, part, false).status(),
              StatusIs(StatusCode::kDataLoss, HasSubstr("layer 0, int8: corrupt")));
}

TEST(RecoderTest, NumbersThatAreNotFiniteAreNotEncoded) {
  const auto recoder = Make("host=raw>disk=int8");
  const std::vector<std::byte> infinities(2 * 2 * 2 * 32 * 64, std::byte{0x7c});
  const auto part = SealSlices({infinities, {}, infinities}, format::Codec::kRaw, kWhole);
  EXPECT_THAT(recoder->Recode(kWhole, part, false).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("not finite")));
}

TEST(RecoderTest, WhatARungCannotStoreIsNamed) {
  const auto refused = [](NamespaceSpec spec) { return Recoder::Create(spec).status(); };
  const std::string ladder = "host=int8>disk=turbo:bits=4";
  EXPECT_THAT(refused(EncodedSpec("device=int8>disk=turbo:bits=4")),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("no device tier")));
  EXPECT_THAT(refused(EncodedSpec("host=int8:group=32>disk=int8:group=128")),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("different codecs")));
  NamespaceSpec spec = EncodedSpec(ladder);
  auto& native = std::get<NativeLayout>(spec.layout.form);
  native.groups[0].planes[1].dtype = DType::kBF16;
  EXPECT_THAT(refused(spec),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("layer 0, plane 'v': bf16")));
  native.groups[0].planes = {{"latent", 1, 64, DType::kF16}};
  EXPECT_THAT(refused(spec), StatusIs(StatusCode::kInvalidArgument, HasSubstr("'k' and 'v'")));
  native.groups[0].planes = {{"k", 2, 48, DType::kF16}, {"v", 2, 48, DType::kF16}};
  EXPECT_THAT(refused(spec),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'turbo' cannot store layer 0")));
  spec = EncodedSpec(ladder);
  spec.layout.form = OpaqueLayout{.description = "x", .max_part_bytes = 1000, .parts = 1};
  EXPECT_THAT(refused(spec), StatusIs(StatusCode::kInvalidArgument, HasSubstr("opaque")));
}

}  // namespace
}  // namespace cairn::cache
