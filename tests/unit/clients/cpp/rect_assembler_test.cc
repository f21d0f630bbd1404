#include "cairn/client/rect_assembler.h"

#include <algorithm>

#include "common/status/matchers.h"

namespace cairn::client {
namespace {

using ::cairn::testing::StatusIs;
using format::PartRect;
using ::testing::HasSubstr;

std::vector<Plane> Kv(uint32_t heads, uint32_t dim, DType dtype) {
  return {{.name = "k", .heads = heads, .dim = dim, .dtype = dtype},
          {.name = "v", .heads = heads, .dim = dim, .dtype = dtype}};
}

// Six layers and six heads: layers 0, 1 full; 2 without planes; 3, 4 with two heads of another
// type; 5 with keys only.
Layout Mixed() {
  Layout layout;
  layout.block_tokens = 16;
  layout.form =
      NativeLayout{.groups = {{2, Kv(6, 8, DType::kF16)},
                              {1, {}},
                              {2, Kv(2, 4, DType::kF32)},
                              {1, {{.name = "k", .heads = 6, .dim = 8, .dtype = DType::kI8}}}},
                   .kv_heads = 6};
  return layout;
}

// The byte that stands at a place of the whole block: what every reader must find there, whatever
// shape it came in.
std::byte ValueAt(uint32_t layer, size_t plane, uint32_t head, uint64_t byte) {
  return static_cast<std::byte>((layer * 131 + plane * 71 + head * 29 + byte * 7 + (byte >> 6)) &
                                0xff);
}

// The rectangle's bytes by the definition: layer -> plane -> head -> token -> dim, a plane with
// fewer heads only from head 0 on.
std::vector<std::byte> Expected(const Layout& layout, const PartRect& rect) {
  std::vector<std::byte> out;
  for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
    size_t p = 0;
    for (const Plane& plane : layout.PlanesOf(layer)) {
      const bool narrow = plane.heads < layout.KvHeads();
      const uint32_t begin = narrow ? 0 : rect.head_begin;
      const uint32_t end = narrow ? (rect.head_begin == 0 ? plane.heads : 0) : rect.head_end;
      for (uint32_t head = begin; head < end; ++head) {
        const uint64_t bytes = uint64_t{layout.block_tokens} * plane.dim * DTypeBytes(plane.dtype);
        for (uint64_t b = 0; b < bytes; ++b) out.push_back(ValueAt(layer, p, head, b));
      }
      ++p;
    }
  }
  return out;
}

Status AddPart(RectAssembler& assembler, const Layout& layout, const PartRect& part) {
  for (uint32_t layer = part.layer_begin; layer < part.layer_end; ++layer) {
    const PartRect one = {static_cast<uint16_t>(layer), static_cast<uint16_t>(layer + 1),
                          part.head_begin, part.head_end};
    CAIRN_RETURN_IF_ERROR(assembler.Add(part, layer, Expected(layout, one)));
  }
  return OkStatus();
}

TEST(RectAssemblerTest, TwoLayerRangesTimesThreeHeadRangesReadByAnyOtherShape) {
  const Layout layout = Mixed();
  std::vector<PartRect> written;
  for (uint16_t layers = 0; layers < 6; layers += 3) {
    for (uint16_t heads = 0; heads < 6; heads += 2) {
      written.push_back(
          {layers, static_cast<uint16_t>(layers + 3), heads, static_cast<uint16_t>(heads + 2)});
    }
  }
  for (uint16_t a = 0; a < 6; ++a) {
    for (uint16_t b = a + 1; b <= 6; ++b) {
      for (uint16_t c = 0; c < 6; ++c) {
        for (uint16_t d = c + 1; d <= 6; ++d) {
          const PartRect want = {a, b, c, d};
          const std::vector<std::byte> expected = Expected(layout, want);
          ASSERT_EQ(RectAssembler::Bytes(layout, want), expected.size());
          // A guard byte at each end: nothing is written outside.
          std::vector<std::byte> buffer(expected.size() + 2, std::byte{0xee});
          auto assembler =
              RectAssembler::Create(layout, want, std::span(buffer).subspan(1, expected.size()));
          ASSERT_OK(assembler);
          for (const PartRect& part : written) ASSERT_OK(AddPart(*assembler, layout, part));
          ASSERT_TRUE(assembler->Complete());
          ASSERT_TRUE(std::equal(expected.begin(), expected.end(), buffer.begin() + 1))
              << "layers " << a << ".." << b << " heads " << c << ".." << d;
          ASSERT_EQ(buffer.front(), std::byte{0xee});
          ASSERT_EQ(buffer.back(), std::byte{0xee});
        }
      }
    }
  }
}

TEST(RectAssemblerTest, KnowsWhichLayersAreComplete) {
  const Layout layout = Mixed();
  const PartRect want = {0, 3, 1, 5};
  std::vector<std::byte> buffer(RectAssembler::Bytes(layout, want));
  auto assembler = RectAssembler::Create(layout, want, buffer);
  ASSERT_OK(assembler);
  ASSERT_OK(AddPart(*assembler, layout, {0, 2, 0, 3}));
  EXPECT_FALSE(assembler->LayerComplete(0));
  ASSERT_OK(AddPart(*assembler, layout, {0, 1, 3, 6}));
  EXPECT_TRUE(assembler->LayerComplete(0));
  EXPECT_FALSE(assembler->LayerComplete(1));
  ASSERT_OK(AddPart(*assembler, layout, {0, 2, 0, 6}));
  EXPECT_TRUE(assembler->LayerComplete(1)) << "overlap with what came before does no harm";
  EXPECT_FALSE(assembler->Complete()) << "layer 2 has no planes, but nobody said so yet";
  ASSERT_OK(AddPart(*assembler, layout, {2, 3, 0, 6}));
  EXPECT_TRUE(assembler->Complete());
  EXPECT_FALSE(assembler->LayerComplete(3)) << "not wanted";
}

TEST(RectAssemblerTest, IgnoresSlicesThatItDoesNotNeed) {
  const Layout layout = Mixed();
  std::vector<std::byte> buffer(RectAssembler::Bytes(layout, {0, 1, 0, 2}), std::byte{0xee});
  auto assembler = RectAssembler::Create(layout, {0, 1, 0, 2}, buffer);
  ASSERT_OK(assembler);
  ASSERT_OK(AddPart(*assembler, layout, {0, 2, 2, 6}));
  ASSERT_OK(AddPart(*assembler, layout, {1, 6, 0, 6}));
  for (std::byte b : buffer) ASSERT_EQ(b, std::byte{0xee});
  EXPECT_FALSE(assembler->LayerComplete(0));
}

TEST(RectAssemblerTest, RefusesWhatDoesNotFit) {
  const Layout layout = Mixed();
  std::vector<std::byte> buffer(RectAssembler::Bytes(layout, {0, 1, 0, 2}));
  using Code = StatusCode;
  EXPECT_THAT(RectAssembler::Create(layout, {0, 7, 0, 2}, buffer),
              StatusIs(Code::kInvalidArgument, HasSubstr("'want'")));
  EXPECT_THAT(RectAssembler::Create(layout, {0, 0, 0, 2}, buffer),
              StatusIs(Code::kInvalidArgument, HasSubstr("'want'")));
  EXPECT_THAT(RectAssembler::Create(layout, {0, 1, 0, 3}, buffer),
              StatusIs(Code::kInvalidArgument, HasSubstr("'destination'")));
  Layout opaque;
  opaque.form = OpaqueLayout{"d", 1, 1};
  EXPECT_THAT(RectAssembler::Create(opaque, {0, 1, 0, 1}, buffer),
              StatusIs(Code::kInvalidArgument, HasSubstr("'layout'")));

  auto assembler = RectAssembler::Create(layout, {0, 1, 0, 2}, buffer);
  ASSERT_OK(assembler);
  EXPECT_THAT(assembler->Add({0, 1, 0, 7}, 0, buffer),
              StatusIs(Code::kInvalidArgument, HasSubstr("'part'")));
  EXPECT_THAT(assembler->Add({0, 1, 0, 2}, 1, buffer),
              StatusIs(Code::kInvalidArgument, HasSubstr("'layer'")));
  EXPECT_THAT(assembler->Add({0, 1, 0, 2}, 0, std::span(buffer).first(buffer.size() - 1)),
              StatusIs(Code::kInvalidArgument, HasSubstr("'slice'")));
}

}  // namespace
}  // namespace cairn::client
