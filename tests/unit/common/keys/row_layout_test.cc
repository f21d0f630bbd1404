#include <random>

#include "cairn/common/rows.h"
#include "common/keys/part_codec.h"
#include "common/status/matchers.h"

namespace cairn {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

constexpr uint32_t kTokens = 128, kHeads = 3, kDim = 64;

NamespaceSpec SpecOf(std::string recipe, uint32_t v_heads = kHeads) {
  NamespaceSpec spec;
  spec.model = "m";
  spec.revision = "1";
  spec.numerics = "n";
  spec.recipe = std::move(recipe);
  spec.layout.block_tokens = kTokens;
  const std::vector<Plane> planes = {{.name = "k", .heads = kHeads, .dim = kDim},
                                     {.name = "v", .heads = v_heads, .dim = kDim}};
  spec.layout.form = NativeLayout{.groups = {{2, planes}}, .kv_heads = kHeads};
  return spec;
}

// Half precision numbers between -2 and 2.
std::vector<uint16_t> Numbers(size_t count) {
  std::mt19937 random(5);
  std::vector<uint16_t> numbers(count);
  for (uint16_t& n : numbers) n = static_cast<uint16_t>((random() & 0x83ff) | 0x3800);
  return numbers;
}

codecs::Plane PlaneOf(const std::vector<uint16_t>& numbers) {
  return {numbers.data(), kHeads, kDim, kTokens * kDim, kDim};
}

// Decodes tokens of one plane of one head.
struct Decoded {
  explicit Decoded(int64_t heads, int64_t tokens)
      : k(static_cast<size_t>(heads * tokens * kDim)), v(k.size()) {}
  codecs::MutablePlane Of(std::vector<uint16_t>& plane, int64_t heads, int64_t tokens) {
    return {plane.data(), heads, kDim, tokens * kDim, kDim};
  }
  std::vector<uint16_t> k, v;
};

// Rows of `recipe` decode to the rows of the decoded slice, whatever rows they are.
void ExpectRowsDecodeAsTheSlice(const std::string& recipe, int64_t first_position) {
  const NamespaceSpec spec = SpecOf(recipe);
  const auto codecs = PartCodecsOf(*CheckNamespace(spec));
  ASSERT_OK(codecs);
  const codecs::Codec& codec = *codecs->rungs[0];
  const std::vector<uint16_t> k = Numbers(kHeads * kTokens * kDim), v = Numbers(k.size() + 1);
  const codecs::SlicePlace place = {.layer = 1, .first_position = first_position};
  std::vector<std::byte> slice(codec.MaxEncodedBytes({kTokens, kHeads, kDim, kHeads, kDim}, place));
  ASSERT_EQ(codec.Encode(PlaneOf(k), PlaneOf(v), kTokens, place, slice, {}).status,
            codecs::CodecStatus::kOk);
  Decoded whole(kHeads, kTokens);
  ASSERT_EQ(codec.Decode(slice, whole.Of(whole.k, kHeads, kTokens),
                         whole.Of(whole.v, kHeads, kTokens), kTokens, place, {}),
            codecs::CodecStatus::kOk);
  const auto layout = RowLayout::Of(spec);
  ASSERT_OK(layout);
  const auto rows = layout->In(1, spec.layout.WholeRect(), codecs->pushed, slice.size());
  ASSERT_OK(rows);
  std::mt19937_64 random(9);
  for (int round = 0; round < 20; ++round) {
    const uint64_t mask[2] = {random() & random(), random() & random() & random()};
    const RowGroup group = {.head = static_cast<uint32_t>(round % kHeads), .mask = mask};
    std::vector<std::byte> bytes(rows->Bytes(group.head, mask));
    rows->Gather(slice, group.head, mask, bytes.data());
    EXPECT_TRUE(layout->IsSize(1, codecs->pushed, mask, bytes.size()));
    EXPECT_FALSE(layout->IsSize(1, codecs->pushed, mask, bytes.size() + 1));
    // The first row is a sink only if it is that of position 0.
    const bool sink = first_position == 0 && (mask[0] & 1) != 0;
    const auto count = static_cast<int64_t>(group.rows());
    Decoded some(1, count);
    ASSERT_EQ(codec.Decode(bytes, some.Of(some.k, 1, count), some.Of(some.v, 1, count), count,
                           {.layer = 1, .first_position = sink ? 0 : 1}, {}),
              codecs::CodecStatus::kOk);
    size_t row = 0;
    SliceRows::ForEachToken(mask, [&](uint32_t token) {
      const size_t at = (group.head * kTokens + token) * kDim;
      for (size_t d = 0; d < kDim; ++d) {
        ASSERT_EQ(some.k[row * kDim + d], whole.k[at + d]) << recipe << " token " << token;
        ASSERT_EQ(some.v[row * kDim + d], whole.v[at + d]) << recipe << " token " << token;
      }
      ++row;
    });
  }
}

TEST(RowLayoutTest, RowsDecodeToTheRowsOfTheirSlice) {
  for (const char* recipe :
       {"raw", "int8", "int8:group=32,sink=1", "fp8:sink=1", "turbo:bits=3", "turbo:bits=4,v=2"}) {
    ExpectRowsDecodeAsTheSlice(recipe, 0);
    ExpectRowsDecodeAsTheSlice(recipe, 640);
  }
}

TEST(RowLayoutTest, RecipesWithoutRowsAreRefusedByName) {
  for (const char* recipe :
       {"int4", "mixed", "cachegen", "streaming:keep=0.5+raw", "host=raw>disk=int4"}) {
    EXPECT_THAT(RowLayout::Of(SpecOf(recipe)).status(),
                StatusIs(StatusCode::kUnimplemented, HasSubstr(recipe)))
        << recipe;
  }
  EXPECT_THAT(RowLayout::Of(SpecOf("raw", 1)).status(),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("plane 'v'")));
  NamespaceSpec opaque = SpecOf("raw");
  opaque.layout.form = OpaqueLayout{.description = "x", .max_part_bytes = 4096, .parts = 1};
  EXPECT_THAT(RowLayout::Of(opaque).status(),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("raw")));
}

TEST(RowLayoutTest, RowsOfALadderFollowTheCodecOfThePart) {
  const auto layout = RowLayout::Of(SpecOf("host=raw>disk=int8"));
  ASSERT_OK(layout);
  const format::PartRect whole = SpecOf("raw").layout.WholeRect();
  const uint64_t raw = uint64_t{2} * kHeads * kTokens * kDim * 2;
  const auto in_raw = layout->In(0, whole, format::Codec::kRaw, raw);
  ASSERT_OK(in_raw);
  EXPECT_EQ(in_raw->planes()[1].row_bytes, kDim * 2u);
  const auto in_int8 =
      layout->In(0, whole, format::Codec::kInt8, uint64_t{2} * kHeads * kTokens * 66);
  ASSERT_OK(in_int8);
  EXPECT_EQ(in_int8->planes()[1].row_bytes, 66u);
  EXPECT_THAT(layout->In(0, whole, format::Codec::kTurbo, raw).status(),
              StatusIs(StatusCode::kDataLoss, HasSubstr("layer 0")));
  EXPECT_THAT(layout->In(0, whole, format::Codec::kRaw, raw - 1).status(),
              StatusIs(StatusCode::kDataLoss, HasSubstr("layer 0")));
}

TEST(RowLayoutTest, AGroupMayBeOneMebibyte) {
  NamespaceSpec spec = SpecOf("raw");
  spec.layout.block_tokens = 256;
  for (LayerGroup& group : std::get<NativeLayout>(spec.layout.form).groups) {
    for (Plane& plane : group.planes) plane.dim = 2048;
  }
  const auto layout = RowLayout::Of(spec);
  ASSERT_OK(layout);
  std::vector<uint64_t> mask = {~uint64_t{0}, ~uint64_t{0}, 0, 0};  // Rows of 8 KiB each.
  const RowGroup group = {.mask = mask};
  EXPECT_OK(layout->Check(0, {&group, 1}, 1));
  mask[2] = 1;
  EXPECT_THAT(layout->Check(0, {&group, 1}, 1),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("rows[0].mask")));
}

TEST(HashRowsTest, EveryFieldCounts) {
  const uint64_t mask[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const std::vector<std::byte> bytes(24, std::byte{7});
  const RowsInfo info = {.block = 1, .layer = 2, .head = 3, .slice_xxh3 = 4};
  const uint64_t hash = HashRows(info, mask, bytes);
  EXPECT_EQ(HashRows(info, mask, bytes), hash);
  for (RowsInfo other :
       {RowsInfo{.block = 2, .layer = 2, .head = 3, .slice_xxh3 = 4},
        RowsInfo{.block = 1, .layer = 1, .head = 3, .slice_xxh3 = 4},
        RowsInfo{.block = 1, .layer = 2, .head = 2, .slice_xxh3 = 4},
        RowsInfo{.block = 1, .layer = 2, .head = 3, .slice_xxh3 = 5},
        RowsInfo{
            .block = 1, .layer = 2, .head = 3, .codec = format::Codec::kInt8, .slice_xxh3 = 4}}) {
    EXPECT_NE(HashRows(other, mask, bytes), hash);
  }
  for (size_t w = 0; w < std::size(mask); ++w) {
    std::vector<uint64_t> other(std::begin(mask), std::end(mask));
    other[w] ^= 1;
    EXPECT_NE(HashRows(info, other, bytes), hash) << w;
  }
  EXPECT_NE(HashRows(info, mask, std::span(bytes).first(23)), hash);
  // The bytes of docs/inside/formats/rows.md, of small and of large groups.
  const uint64_t one = 1;
  for (const size_t size : {size_t{24}, size_t{4096 - 32}, size_t{4097 - 32}, size_t{9000}}) {
    const std::vector<std::byte> rows(size, std::byte{7});
    std::vector<std::byte> drawn;
    const auto append = [&](uint64_t value, int bits) {
      for (int shift = 0; shift < bits; shift += 8) {
        drawn.push_back(static_cast<std::byte>(value >> shift));
      }
    };
    for (const uint32_t word : {1u, 2u, 3u, 0u}) append(word, 32);
    append(4, 64);
    append(one, 64);
    drawn.insert(drawn.end(), rows.begin(), rows.end());
    EXPECT_EQ(HashRows(info, {&one, 1}, rows), Xxh3(drawn)) << size;
  }
}

}  // namespace
}  // namespace cairn
