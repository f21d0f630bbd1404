#include "cairn/common/part.h"

#include <cstring>
#include <random>
#include <string>

#include "cairn/common/hash.h"
#include "cairn/common/seal_copy.h"
#include "common/format/selected_slice.h"
#include "common/status/matchers.h"

namespace cairn::format {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

struct Sample {
  PartRect rect;
  std::vector<uint64_t> lengths;
  std::vector<std::byte> bytes;
};

Sample Make(PartRect rect, std::vector<uint64_t> lengths, uint64_t seed,
            Codec codec = Codec::kRaw) {
  Sample sample{rect, std::move(lengths), {}};
  sample.bytes.resize(PartBytes(sample.lengths));
  std::mt19937_64 rng(seed);
  for (auto& b : sample.bytes) b = static_cast<std::byte>(rng());
  SealPart(sample.bytes, codec, rect, 64, sample.lengths);
  return sample;
}

Sample Small() { return Make({2, 5, 1, 3}, {100, 0, 33}, 1); }

// Writes a field and makes the header hash right again: what a wrong writer would produce.
template <typename T>
void Forge(std::vector<std::byte>& part, size_t at, T value, uint32_t header_bytes) {
  std::memcpy(part.data() + at, &value, sizeof(value));
  std::memset(part.data() + 40, 0, 8);
  const uint64_t hash = Xxh3(std::span(part).first(header_bytes));
  std::memcpy(part.data() + 40, &hash, 8);
}

TEST(PartTest, HeaderIsPaddedTo64Bytes) {
  EXPECT_EQ(HeaderBytes(1), 128u);
  EXPECT_EQ(HeaderBytes(2), 128u);
  EXPECT_EQ(HeaderBytes(3), 192u);
  EXPECT_EQ(HeaderBytes(30), 832u);
  EXPECT_EQ(HeaderBytes(65535), 1572928u);
}

TEST(PartTest, RoundTrip) {
  const Sample sample = Make({0, 30, 0, 3}, std::vector<uint64_t>(30, 4096), 7, Codec::kOpaque);
  const auto header = VerifyPart(sample.bytes);
  ASSERT_OK(header);
  EXPECT_EQ(header->codec, Codec::kOpaque);
  EXPECT_EQ(header->rect, sample.rect);
  EXPECT_EQ(header->block_tokens, 64);
  EXPECT_EQ(header->total_bytes, sample.bytes.size());
  ASSERT_EQ(header->slices.size(), 30u);
  EXPECT_EQ(header->slices[0].offset, HeaderBytes(30));
  EXPECT_EQ(header->slices[29].offset + header->slices[29].length, sample.bytes.size());
}

TEST(PartTest, RoundTripOfRandomShapes) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::mt19937_64 rng(seed);
    const auto layers = static_cast<uint16_t>(1 + rng() % 40);
    const auto begin = static_cast<uint16_t>(rng() % 1000);
    std::vector<uint64_t> lengths(layers);
    for (auto& length : lengths) length = rng() % 4 == 0 ? 0 : rng() % 3000;
    const Sample sample = Make({begin, static_cast<uint16_t>(begin + layers), 0, 8}, lengths, seed);
    const auto header = VerifyPart(sample.bytes);
    ASSERT_THAT(header, testing::IsOk()) << "seed " << seed;
    for (size_t i = 0; i < layers; ++i) EXPECT_EQ(header->slices[i].length, lengths[i]);
  }
}

TEST(PartTest, LayerWithoutKvHasTheHashOfNothing) {
  const Sample sample = Small();
  const auto header = VerifyPart(sample.bytes);
  ASSERT_OK(header);
  EXPECT_EQ(header->slices[1].length, 0u);
  EXPECT_EQ(header->slices[1].xxh3, Xxh3({}));
}

TEST(PartTest, PrefixThatHoldsTheHeaderParses) {
  const Sample sample = Small();
  EXPECT_OK(ParseHeader(std::span(sample.bytes).first(HeaderBytes(3))));
  EXPECT_THAT(VerifyPart(std::span(sample.bytes).first(HeaderBytes(3))),
              StatusIs(StatusCode::kDataLoss, HasSubstr("total_bytes")));
}

// The bytes of version 1, from an independent implementation (Python, struct and xxhash): a change
// of the writer that old readers would not notice fails here.
TEST(PartTest, GoldenBytes) {
  const std::vector<uint64_t> lengths = {4, 0, 3};
  std::vector<std::byte> part(PartBytes(lengths));
  std::memcpy(part.data() + 192, "KVKVabc", 7);
  SealPart(part, Codec::kRaw, {2, 5, 1, 3}, 64, lengths);
  std::string hex;
  for (std::byte b : part) hex += fmt::format("{:02x}", static_cast<unsigned>(b));
  EXPECT_EQ(hex,
            "434149524e505431c00000000100000002000500010003004000000003000000c700000000000000"
            "107232cbf95d030800000000000000000000000000000000c0000000000000000400000000000000"
            "0f1b928b56299895c4000000000000000000000000000000c294d3380580062dc400000000000000"
            "030000000000000050392f89945faf78000000000000000000000000000000000000000000000000"
            "00000000000000000000000000000000000000000000000000000000000000004b564b56616263");
}

TEST(PartTest, TheFlagOfSelectedRowsIsReadAndOthersAreRefused) {
  const std::vector<uint64_t> lengths = {4, 0, 3};
  std::vector<std::byte> part(PartBytes(lengths));
  SealPart(part, Codec::kInt8, {2, 5, 1, 3}, 64, lengths, /*selected=*/true);
  const auto header = VerifyPart(part);
  ASSERT_OK(header);
  EXPECT_TRUE(header->selected);
  EXPECT_EQ(part[26], std::byte{1});
  EXPECT_FALSE(VerifyPart(Small().bytes)->selected);
  // A flag of later versions, with a right hash.
  part[27] = std::byte{1};
  std::memset(part.data() + 40, 0, 8);
  const uint64_t hash = Xxh3(std::span(part).first(HeaderBytes(3)));
  std::memcpy(part.data() + 40, &hash, sizeof(hash));
  EXPECT_THAT(VerifyPart(part), StatusIs(StatusCode::kDataLoss, HasSubstr("flags: got 257")));
}

TEST(SelectedSliceTest, MasksAreReadBack) {
  // Two heads of blocks of 16 tokens.
  const std::vector<uint64_t> words = {0x8001, 0};
  std::vector<std::byte> slice;
  WriteMasks(words, &slice);
  EXPECT_EQ(slice.size(), MaskBytes(2, 16));
  slice.push_back(std::byte{9});
  const auto read = ReadMasks(slice, 2, 16);
  ASSERT_OK(read);
  EXPECT_EQ(*read, words);
  EXPECT_EQ(ReadMasks(slice, 1, 128)->size(), 2u);
}

TEST(SelectedSliceTest, ShortSlicesAndTokensBehindTheBlockAreDataLoss) {
  std::vector<std::byte> slice;
  WriteMasks(std::vector<uint64_t>{0x8001, 0x10000}, &slice);
  EXPECT_THAT(ReadMasks(slice, 2, 16),
              StatusIs(StatusCode::kDataLoss, HasSubstr("mask of head 1")));
  EXPECT_OK(ReadMasks(slice, 2, 64).status());
  slice.pop_back();
  EXPECT_THAT(ReadMasks(slice, 2, 64), StatusIs(StatusCode::kDataLoss, HasSubstr("got 15 bytes")));
}

TEST(PartTest, EverySingleBitFlipIsDetected) {
  const Sample sample = Small();
  for (size_t i = 0; i < sample.bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      auto damaged = sample.bytes;
      damaged[i] ^= static_cast<std::byte>(1 << bit);
      ASSERT_THAT(VerifyPart(damaged), StatusIs(StatusCode::kDataLoss, HasSubstr("part: ")))
          << "byte " << i << " bit " << bit;
    }
  }
}

TEST(PartTest, EveryByteValueInTheHeaderIsDetected) {
  const Sample sample = Small();
  for (size_t i = 0; i < HeaderBytes(3); ++i) {
    for (int value = 0; value < 256; ++value) {
      auto damaged = sample.bytes;
      if (damaged[i] == static_cast<std::byte>(value)) continue;
      damaged[i] = static_cast<std::byte>(value);
      ASSERT_FALSE(ParseHeader(damaged).ok()) << "byte " << i << " value " << value;
    }
  }
}

TEST(PartTest, DamagedSliceNamesItsLayer) {
  Sample sample = Small();
  sample.bytes[192 + 100 + 5] ^= std::byte{4};
  EXPECT_OK(ParseHeader(sample.bytes));
  EXPECT_THAT(VerifyPart(sample.bytes), StatusIs(StatusCode::kDataLoss, HasSubstr("layer 4")));
}

TEST(PartTest, EveryTruncationIsDetected) {
  const Sample sample = Small();
  for (size_t n = 0; n < sample.bytes.size(); ++n) {
    ASSERT_THAT(VerifyPart(std::span(sample.bytes).first(n)),
                StatusIs(StatusCode::kDataLoss, HasSubstr("part: ")))
        << n;
  }
  auto longer = sample.bytes;
  longer.push_back(std::byte{0});
  EXPECT_THAT(VerifyPart(longer), StatusIs(StatusCode::kDataLoss, HasSubstr("total_bytes")));
}

TEST(PartTest, ForeignBytesAreNamed) {
  const std::string text = "GGUF" + std::string(300, 'x');
  EXPECT_THAT(ParseHeader(std::as_bytes(std::span(text))),
              StatusIs(StatusCode::kDataLoss, HasSubstr("magic")));
}

TEST(PartTest, WrongWritersAreNamed) {
  const uint32_t header_bytes = HeaderBytes(3);
  const auto forged = [&](size_t at, auto value) {
    auto bytes = Small().bytes;
    Forge(bytes, at, value, header_bytes);
    return ParseHeader(bytes).status();
  };
  EXPECT_THAT(forged(12, uint16_t{2}),
              StatusIs(StatusCode::kDataLoss, HasSubstr("version: got 2")));
  EXPECT_THAT(forged(14, uint16_t{9}), StatusIs(StatusCode::kDataLoss, HasSubstr("codec: got 9")));
  EXPECT_THAT(forged(18, uint16_t{2}), StatusIs(StatusCode::kDataLoss, HasSubstr("is empty")));
  EXPECT_THAT(forged(18, uint16_t{6}), StatusIs(StatusCode::kDataLoss, HasSubstr("slice_count")));
  EXPECT_THAT(forged(8, uint32_t{256}), StatusIs(StatusCode::kDataLoss, HasSubstr("header_bytes")));
  EXPECT_THAT(forged(26, uint16_t{2}), StatusIs(StatusCode::kDataLoss, HasSubstr("flags")));
  EXPECT_THAT(forged(63, uint8_t{1}), StatusIs(StatusCode::kDataLoss, HasSubstr("reserved")));
  EXPECT_THAT(forged(191, uint8_t{1}), StatusIs(StatusCode::kDataLoss, HasSubstr("reserved")));
  EXPECT_THAT(forged(64, uint64_t{200}), StatusIs(StatusCode::kDataLoss, HasSubstr("offset 200")));
  EXPECT_THAT(forged(72, ~uint64_t{0}), StatusIs(StatusCode::kDataLoss, HasSubstr("beyond")));
  // 100 + (2^64 - 100) wraps to 0.
  EXPECT_THAT(forged(96, ~uint64_t{0} - 99), StatusIs(StatusCode::kDataLoss, HasSubstr("beyond")));
  EXPECT_THAT(forged(32, uint64_t{1000}), StatusIs(StatusCode::kDataLoss, HasSubstr("slices end")));
}

TEST(PartTest, RandomBytesNeverParse) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::mt19937_64 rng(seed);
    std::vector<std::byte> bytes(rng() % 600);
    for (auto& b : bytes) b = static_cast<std::byte>(rng());
    // Half of them get past the first checks.
    if (seed % 2 == 0 && bytes.size() >= 64) {
      std::memcpy(bytes.data(), Small().bytes.data(), 16 + rng() % 48);
    }
    ASSERT_FALSE(VerifyPart(bytes).ok()) << "seed " << seed;
  }
}

TEST(SealCopyTest, WritesWhatSealPartWrites) {
  const PartRect rect{2, 6, 0, 3};
  std::mt19937_64 rng(7);
  for (const std::vector<uint64_t>& lengths :
       {std::vector<uint64_t>{96, 0, 4096, 33}, std::vector<uint64_t>{65536, 65536, 2048, 70001}}) {
    std::vector<std::byte> expected(PartBytes(lengths));
    const size_t header = HeaderBytes(static_cast<uint32_t>(lengths.size()));
    for (size_t i = header; i < expected.size(); ++i) expected[i] = static_cast<std::byte>(rng());
    const std::vector<std::byte> payload(expected.begin() + static_cast<std::ptrdiff_t>(header),
                                         expected.end());
    SealPart(expected, Codec::kRaw, rect, 16, lengths);
    for (const bool streaming : {false, true}) {
      std::vector<std::byte> part(expected.size());
      SealCopy(part, payload, Codec::kRaw, rect, 16, lengths, streaming);
      EXPECT_EQ(part, expected);
      EXPECT_TRUE(VerifyPart(part).ok());
    }
  }
}

TEST(PartRectTest, OverlapNeedsBothAxes) {
  const PartRect rect{0, 10, 0, 4};
  EXPECT_TRUE(rect.Overlaps({9, 12, 3, 5}));
  EXPECT_FALSE(rect.Overlaps({10, 12, 0, 4}));
  EXPECT_FALSE(rect.Overlaps({0, 10, 4, 8}));
  EXPECT_EQ(rect.Cells(), 40u);
}

}  // namespace
}  // namespace cairn::format
