#include "common/keys/part_codec.h"

#include "common/status/matchers.h"

namespace cairn {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

// 3 layers, of which the second has no KV.
NamespaceSpec SpecOf(std::vector<Plane> planes, uint32_t kv_heads, std::string recipe) {
  NamespaceSpec spec;
  spec.model = "m";
  spec.revision = "1";
  spec.numerics = "n";
  spec.recipe = std::move(recipe);
  spec.layout.form =
      NativeLayout{.groups = {{1, planes}, {1, {}}, {1, planes}}, .kv_heads = kv_heads};
  return spec;
}

std::vector<Plane> Kv(uint32_t heads, uint32_t dim, DType k = DType::kF16, DType v = DType::kF16) {
  return {{.name = "k", .heads = heads, .dim = dim, .dtype = k},
          {.name = "v", .heads = heads, .dim = dim, .dtype = v}};
}

Result<PartCodecs> CodecsOf(const NamespaceSpec& spec) {
  CAIRN_ASSIGN_OR_RETURN(const CheckedNamespace ns, CheckNamespace(spec));
  return PartCodecsOf(ns);
}
Result<PartCodecs> CodecsOf(const std::string& recipe) {
  return CodecsOf(SpecOf(Kv(3, 64), 3, recipe));
}

TEST(PartCodecsTest, OneCodecIsThatOfAllTiers) {
  const auto codecs = CodecsOf("int8");
  ASSERT_OK(codecs);
  EXPECT_EQ(codecs->pushed, format::Codec::kInt8);
  EXPECT_EQ(codecs->on_disk, format::Codec::kInt8);
  EXPECT_FALSE(codecs->IsLadder());
  EXPECT_FALSE(codecs->selected);
  ASSERT_EQ(codecs->rungs.size(), 1u);
  EXPECT_EQ(codecs->rungs[0]->name(), "int8");
}

TEST(PartCodecsTest, ALadderHasTheCodecsOfItsRungsInOrder) {
  const auto codecs = CodecsOf("host=raw>disk=turbo:bits=4");
  ASSERT_OK(codecs);
  EXPECT_TRUE(codecs->IsLadder());
  EXPECT_EQ(codecs->pushed, format::Codec::kRaw);
  ASSERT_EQ(codecs->rungs.size(), 2u);
  EXPECT_EQ(codecs->rungs[0]->name(), "raw");
  EXPECT_EQ(codecs->rungs[1]->name(), "turbo");
}

TEST(PartCodecsTest, RawStoresAnyPlanes) {
  EXPECT_OK(
      CodecsOf(SpecOf({{"latent", 1, 512, DType::kBF16}, {"rope", 1, 64, DType::kF32}}, 1, "raw")));
  EXPECT_OK(CodecsOf(SpecOf(Kv(3, 7, DType::kF8E4M3, DType::kI8), 3, "raw")));
}

TEST(PartCodecsTest, OtherCodecsNeedKeysAndValuesOfHalfPrecision) {
  for (const std::string recipe : {"int8", "cachegen", "host=raw>disk=int4"}) {
    EXPECT_OK(CodecsOf(recipe));
    EXPECT_THAT(CodecsOf(SpecOf(Kv(3, 64, DType::kF16, DType::kBF16), 3, recipe)),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("field 'recipe': got '" + recipe),
                               HasSubstr("expected raw, or planes 'k' and 'v' of f16"),
                               HasSubstr("layer 0 has k: 3 x 64 f16, v: 3 x 64 bf16: plane 'v' "
                                         "is bf16"))));
    auto swapped = Kv(3, 64);
    std::swap(swapped[0].name, swapped[1].name);
    EXPECT_THAT(CodecsOf(SpecOf(swapped, 3, recipe)),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("in this order")));
  }
}

// The planes that a model may have instead of keys and values, and which one the refusal is about.
TEST(PartCodecsTest, ARefusalNamesThePlane) {
  const struct {
    std::vector<Plane> planes;
    const char* why;
  } kCases[] = {
      {{{"latent", 1, 64, DType::kF16}, {"k_rope", 1, 64, DType::kF16}},
       "plane 'latent' stands where 'k' is expected"},
      {{{"k", 1, 64, DType::kF16}, {"latent", 1, 64, DType::kF16}},
       "plane 'latent' stands where 'v' is expected"},
      {{{"k", 1, 64, DType::kBF16}, {"v", 1, 64, DType::kBF16}}, "plane 'k' is bf16"},
      {{{"k", 1, 64, DType::kF16}, {"v", 1, 64, DType::kF8E4M3}}, "plane 'v' is f8e4m3"},
      {{{"k", 1, 64, DType::kF16}, {"v", 1, 64, DType::kF16}, {"index", 1, 64, DType::kF16}},
       "plane 'index' is one too many"},
      {{{"k", 1, 64, DType::kF16}}, "plane 'v' is missing"},
      {{{"k", 1, 64, DType::kF16}, {"v", 1, 72, DType::kF16}}, "v.dim: got 72"},
      {{{"k", 1, 7, DType::kF16}, {"v", 1, 7, DType::kF16}}, "k.dim: got 7"},
  };
  for (const auto& test : kCases) {
    for (const std::string recipe :
         {"int8", "fp8", "int4", "mixed", "turbo", "cachegen", "host=raw>disk=int4"}) {
      EXPECT_THAT(CodecsOf(SpecOf(test.planes, 1, recipe)),
                  StatusIs(StatusCode::kInvalidArgument,
                           AllOf(HasSubstr("field 'recipe': got '" + recipe), HasSubstr(test.why))))
          << recipe;
    }
    EXPECT_OK(CodecsOf(SpecOf(test.planes, 1, "raw")));
  }
}

TEST(PartCodecsTest, AShapeThatACodecRefusesIsNamed) {
  EXPECT_THAT(CodecsOf(SpecOf(Kv(3, 48), 3, "turbo")),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("field 'recipe': got 'turbo'"),
                             HasSubstr("'turbo' cannot store layer 0: k.dim: got 48"))));
  EXPECT_THAT(CodecsOf(SpecOf(Kv(3, 48), 3, "host=int8:group=16>disk=turbo:bits=4")),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'turbo' cannot store layer 0")));
  // The layer is the first that the codec cannot store.
  NamespaceSpec spec = SpecOf(Kv(3, 64), 3, "turbo");
  std::get<NativeLayout>(spec.layout.form).groups[2].planes = Kv(3, 48);
  EXPECT_THAT(CodecsOf(spec),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("cannot store layer 2")));
}

TEST(PartCodecsTest, ASelectionNeedsAHeadForEachKvHead) {
  const auto codecs = CodecsOf("streaming:keep=0.4+int8");
  ASSERT_OK(codecs);
  EXPECT_TRUE(codecs->selected);
  EXPECT_EQ(codecs->pushed, format::Codec::kInt8);
  EXPECT_FALSE(codecs->IsLadder());
  auto fewer = Kv(3, 64);
  fewer[1].heads = 1;
  for (const auto& planes : {fewer, Kv(3, 64, DType::kBF16, DType::kBF16)}) {
    EXPECT_THAT(CodecsOf(SpecOf(planes, 3, "streaming:keep=0.4+raw")),
                StatusIs(StatusCode::kInvalidArgument,
                         HasSubstr("expected planes 'k' and 'v' of f16 with 3 heads")));
  }
}

TEST(PartCodecsTest, OpaqueBytesAreRaw) {
  NamespaceSpec spec = SpecOf({}, 1, "raw");
  spec.layout.form = OpaqueLayout{"d", 1, 1};
  const auto codecs = CodecsOf(spec);
  ASSERT_OK(codecs);
  EXPECT_EQ(codecs->pushed, format::Codec::kOpaque);
  EXPECT_TRUE(codecs->rungs.empty());
  for (const char* recipe : {"int8", "host=int8>disk=int4", "streaming:keep=0.4+raw"}) {
    spec.recipe = recipe;
    EXPECT_THAT(CodecsOf(spec), StatusIs(StatusCode::kInvalidArgument,
                                         HasSubstr("expected raw in an opaque layout")));
  }
}

TEST(PartCodecsTest, LaddersThatANodeCannotClimbAreRefused) {
  EXPECT_THAT(CodecsOf("device=int8>disk=turbo:bits=4"),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("rungs only for host and disk")));
  EXPECT_THAT(CodecsOf("host=int8:group=32>disk=int8:group=128"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("different codecs")));
}

}  // namespace
}  // namespace cairn
