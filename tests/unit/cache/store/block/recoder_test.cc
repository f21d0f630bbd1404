#include "services/cache/store/block/recoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/matchers.h"
#include "tests/unit/cache/store/block/encoded_parts.h"

namespace cairn::cache {
namespace {

using ::cairn::testing::StatusIs;
using testing::EncodedPart;
using testing::EncodedSpec;
using ::testing::HasSubstr;
using testing::SealSlices;

constexpr format::PartRect kWhole{0, 3, 0, 2};

constexpr uint64_t kNoLimit = UINT64_MAX;

std::unique_ptr<const Recoder> Make(const std::string& recipe) {
  const auto ns = CheckNamespace(EncodedSpec(recipe));
  EXPECT_OK(ns);
  const auto codecs = PartCodecsOf(*ns);
  EXPECT_OK(codecs);
  return Recoder::Create(ns->spec.layout, *codecs);
}

std::vector<std::byte> Recoded(const Recoder& recoder, const format::PartRect& rect,
                               const std::vector<std::byte>& part, bool at_start) {
  const auto buffer = recoder.Recode(rect, part, at_start, kNoLimit);
  EXPECT_OK(buffer);
  if (!buffer.ok()) return {};
  return {buffer->bytes().begin(), buffer->bytes().end()};
}

TEST(RecoderTest, OnlyLaddersHaveOne) {
  EXPECT_EQ(Make("int8"), nullptr);
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
      recoder->Recode(kWhole, slice, false, kNoLimit).status(),
      StatusIs(StatusCode::kDataLoss, HasSubstr("layer 2: bytes do not match their checksum")));
  auto header = good;
  header[40] ^= std::byte{1};
  EXPECT_THAT(recoder->Recode(kWhole, header, false, kNoLimit).status(),
              StatusIs(StatusCode::kDataLoss, HasSubstr("header")));
  EXPECT_THAT(recoder->Recode({0, 2, 0, 2}, good, false, kNoLimit).status(),
              StatusIs(StatusCode::kDataLoss, HasSubstr("layers")));
}

TEST(RecoderTest, SoundBytesThatNoEncoderWroteAreRefused) {
  const auto recoder = Make("host=int8>disk=turbo:bits=4");
  const std::vector<std::byte> junk(100, std::byte{0x7c});
  const auto part = SealSlices({junk, {}, junk}, format::Codec::kInt8, kWhole);
  EXPECT_THAT(recoder->Recode(kWhole, part, false, kNoLimit).status(),
              StatusIs(StatusCode::kDataLoss, HasSubstr("layer 0, int8: corrupt")));
}

TEST(RecoderTest, APartThatWouldGrowBeyondItsLimitIsRefused) {
  const auto recoder = Make("host=int8>disk=turbo:bits=4");
  const auto part = EncodedPart({"int8"}, 1, kWhole, true);
  const uint64_t exact = recoder->MaxBlockBytes(true);
  EXPECT_OK(recoder->Recode(kWhole, part, true, exact));
  for (const uint64_t limit : {exact - 1, exact / 2, uint64_t{50}, uint64_t{0}}) {
    EXPECT_THAT(
        recoder->Recode(kWhole, part, true, limit).status(),
        StatusIs(StatusCode::kInvalidArgument, HasSubstr(fmt::format("more than {} ", limit))));
  }
}

TEST(RecoderTest, NumbersThatAreNotFiniteAreNotEncoded) {
  const auto recoder = Make("host=raw>disk=int8");
  const std::vector<std::byte> infinities(2 * 2 * 2 * 32 * 64, std::byte{0x7c});
  const auto part = SealSlices({infinities, {}, infinities}, format::Codec::kRaw, kWhole);
  EXPECT_THAT(recoder->Recode(kWhole, part, false, kNoLimit).status(),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("not finite")));
}

}  // namespace
}  // namespace cairn::cache
