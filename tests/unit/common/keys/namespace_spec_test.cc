#include "cairn/common/namespace_spec.h"

#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

#include "common/keys/checked_namespace.h"
#include "common/keys/segment_keys.h"
#include "common/status/matchers.h"

namespace cairn {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::FieldsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<Plane> Kv(uint32_t heads, uint32_t dim, DType dtype) {
  return {{.name = "k", .heads = heads, .dim = dim, .dtype = dtype},
          {.name = "v", .heads = heads, .dim = dim, .dtype = dtype}};
}

// Grouped-query attention, as SmolLM2 has it.
NamespaceSpec Gqa() {
  NamespaceSpec spec;
  spec.model = "SmolLM2-135M-Instruct";
  spec.revision = "sha256:0123";
  spec.layout.form = NativeLayout{.groups = {{30, Kv(3, 64, DType::kF16)}}, .kv_heads = 3};
  spec.numerics = "cairn-cpu-1";
  return spec;
}

// Layers without planes, and layers with fewer heads than the grid.
NamespaceSpec Gapped() {
  NamespaceSpec spec;
  spec.tenant = "team-a";
  spec.salt = std::string("\0salt\xff", 6);
  spec.model = "hybrid";
  spec.revision = "r2";
  spec.weight_epoch = 7;
  spec.layout.block_tokens = 16;
  spec.layout.form = NativeLayout{
      .groups = {{2, Kv(8, 128, DType::kBF16)}, {3, {}}, {1, Kv(2, 128, DType::kF8E4M3)}},
      .kv_heads = 8,
      .key_rotation = KeyRotation::kBeforeRope};
  spec.recipe = "int8:group=64,sink=0";
  spec.numerics = "any";
  return spec;
}

NamespaceSpec Mla() {
  NamespaceSpec spec;
  spec.model = "mla";
  spec.revision = "main";
  spec.layout.block_tokens = 128;
  spec.layout.form =
      NativeLayout{.groups = {{61,
                               {{.name = "latent", .heads = 1, .dim = 512, .dtype = DType::kBF16},
                                {.name = "rope", .heads = 1, .dim = 64, .dtype = DType::kF32}}}},
                   .kv_heads = 1};
  spec.numerics = "x";
  return spec;
}

NamespaceSpec Opaque() {
  NamespaceSpec spec;
  spec.model = "vendor/model";
  spec.revision = "abc";
  spec.layout.block_tokens = 256;
  spec.layout.form = OpaqueLayout{
      .description = "engine 1.2, rank 0 of 2, page 16", .max_part_bytes = 4 << 20, .parts = 2};
  spec.numerics = "cuda-sm90";
  spec.key_version = 3;
  spec.key_scheme = "vllm-sha256-cbor";
  return spec;
}

// Full attention, a window and a state, in blocks of three lengths.
NamespaceSpec Pooled() {
  NamespaceSpec spec;
  spec.model = "vendor/hybrid";
  spec.revision = "abc";
  spec.layout.block_tokens = 16;
  spec.layout.form = OpaqueLayout{.description = "engine 1.2, 2 ranks",
                                  .pools = {{"full", 16, 2, 65536, true},
                                            {"window_512", 32, 2, 131072, false},
                                            {"state", 544, 3, 4 << 20, false}}};
  spec.numerics = "cuda-sm90";
  spec.key_scheme = "vllm-sha256-cbor";
  return spec;
}

std::map<std::string, NamespaceSpec> AllForms() {
  return {{"gqa", Gqa()},
          {"gapped", Gapped()},
          {"mla", Mla()},
          {"opaque", Opaque()},
          {"pooled", Pooled()}};
}

std::vector<Pool>& PoolsOf(NamespaceSpec& spec) {
  return std::get<OpaqueLayout>(spec.layout.form).pools;
}

NativeLayout& Native(NamespaceSpec& spec) { return std::get<NativeLayout>(spec.layout.form); }

// "<kind> <name>" -> hex, from golden.txt, which golden.py writes.
std::map<std::string, std::string> Golden() {
  std::ifstream in("tests/unit/common/keys/golden.txt");
  std::map<std::string, std::string> out;
  std::string kind, name, hex;
  while (in >> kind >> name >> hex) out[kind + " " + name] = hex;
  return out;
}

std::string Hex(std::string_view bytes) {
  std::string out;
  for (char c : bytes)
    out += fmt::format("{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  return out;
}

TEST(NamespaceGolden, EncodingsAndFingerprintsEqualTheIndependentDerivation) {
  auto golden = Golden();
  ASSERT_EQ(golden.size(), 22u);
  for (const auto& [name, spec] : AllForms()) {
    EXPECT_OK(Validate(spec));
    EXPECT_EQ(Hex(Encode(spec)), golden["encoded " + name]) << name;
    EXPECT_EQ(Fingerprint(spec).Hex(), golden["fingerprint " + name]) << name;
  }
}

TEST(NamespaceSpecTest, RecipesThatMeanTheSameAreOneNamespace) {
  NamespaceSpec a = Gqa(), b = Gqa();
  a.recipe = "int8";
  b.recipe = "int8:sink=0,group=64";
  EXPECT_EQ(Fingerprint(a), Fingerprint(b));
  EXPECT_TRUE(Differences(a, b).empty());
  b.recipe = "int8:sink=1";
  EXPECT_NE(Fingerprint(a), Fingerprint(b));
}

TEST(CheckNamespaceTest, CarriesTheRecipeAndTheFingerprint) {
  NamespaceSpec spec = Gqa();
  spec.recipe = "int8:sink=1";
  const auto ns = CheckNamespace(spec);
  ASSERT_OK(ns);
  EXPECT_EQ(ns->spec, spec);
  EXPECT_EQ(ns->recipe, *ParseRecipe("int8:sink=1,group=64"));
  EXPECT_EQ(ns->fingerprint, Fingerprint(spec));
}

TEST(CheckNamespaceTest, DifferencesAreThoseOfTheSpecs) {
  NamespaceSpec stored = Gqa(), requested = Gqa();
  stored.recipe = "int8";
  requested.recipe = "int4";
  const auto a = CheckNamespace(stored), b = CheckNamespace(requested);
  const auto differences = Differences(a->spec, a->recipe, b->spec, b->recipe);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].field, "recipe");
  EXPECT_EQ(differences[0].stored, Differences(stored, requested)[0].stored);
  EXPECT_EQ(differences[0].requested, Differences(stored, requested)[0].requested);
}

TEST(NamespaceGolden, BlockKeysEqualTheIndependentDerivation) {
  auto golden = Golden();
  BlockKeyChain chain(Fingerprint(Gqa()));
  std::vector<int32_t> tokens(600);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::span<const int32_t> all(tokens);
  const BlockKey root = chain.Next(std::nullopt, all.first(16));
  EXPECT_EQ(root.Hex(), golden["key root16"]);
  EXPECT_EQ(chain.Next(root, all.subspan(16, 16)).Hex(), golden["key child16"]);
  EXPECT_EQ(chain.Next(root, all.subspan(16, 16), "lora:7").Hex(), golden["key child16_adapter"]);
  EXPECT_EQ(chain.Next(std::nullopt, std::vector<int32_t>(64, -1)).Hex(), golden["key negative"]);
  EXPECT_EQ(chain.Next(std::nullopt, all).Hex(), golden["key long"]);
  EXPECT_EQ(chain.Next(std::nullopt, {}).Hex(), golden["key empty"]);
}

TEST(NamespaceGolden, PoolKeysEqualTheIndependentDerivation) {
  auto golden = Golden();
  BlockKeyChain chain(Fingerprint(Gqa()));
  std::vector<int32_t> tokens(16);
  std::iota(tokens.begin(), tokens.end(), 0);
  const BlockKey unit = chain.Next(std::nullopt, tokens);
  for (const uint32_t pool : {0u, 1u, 31u}) {
    EXPECT_EQ(PoolKey(unit, pool).Hex(), golden[fmt::format("pool {}", pool)]);
    EXPECT_EQ(PoolKey(PoolKey(unit, pool), pool), unit);
  }
  std::set<Digest> masks;
  for (uint32_t pool = 0; pool < kMaxPools; ++pool) masks.insert(PoolMask(pool));
  EXPECT_EQ(masks.size(), kMaxPools);
}

TEST(NamespaceGolden, SegmentKeysEqualTheIndependentDerivation) {
  auto golden = Golden();
  const Digest fingerprint = Fingerprint(Gqa());
  BlockKeyChain chain(fingerprint);
  std::vector<int32_t> tokens(32);
  std::iota(tokens.begin(), tokens.end(), 0);
  const BlockKey end = chain.Keys(tokens, 16).back();
  SegmentKeys segments(fingerprint);
  const std::vector<BlockKey> keys = segments.Keys(std::nullopt, end, 2);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].Hex(), golden["segment first"]);
  EXPECT_EQ(keys[1].Hex(), golden["segment last"]);
  const BlockKey below = chain.Next(end, std::vector<int32_t>(16, 7));
  EXPECT_EQ(segments.Key(keys[1], below, 0x01020304).Hex(), golden["segment below"]);
}

TEST(SegmentKeysTest, EndParentAndNumberAreAllPartOfTheName) {
  const Digest fingerprint = Fingerprint(Gqa());
  SegmentKeys keys(fingerprint);
  BlockKeyChain chain(fingerprint);
  const BlockKey end = chain.Next(std::nullopt, std::vector<int32_t>(64, 1));
  const BlockKey other = chain.Next(end, std::vector<int32_t>(64, 1));
  std::set<Digest> seen = {end, other};
  EXPECT_TRUE(seen.insert(keys.Key(std::nullopt, end, 0)).second);
  EXPECT_TRUE(seen.insert(keys.Key(std::nullopt, end, 1)).second);
  EXPECT_TRUE(seen.insert(keys.Key(std::nullopt, other, 0)).second);
  EXPECT_TRUE(seen.insert(keys.Key(end, other, 0)).second);
  EXPECT_TRUE(seen.insert(SegmentKeys(Fingerprint(Gapped())).Key(std::nullopt, end, 0)).second);
}

TEST(NamespaceEncoding, DecodesToAnEqualSpec) {
  for (const auto& [name, spec] : AllForms()) {
    const Result<NamespaceSpec> decoded = DecodeNamespaceSpec(Encode(spec));
    ASSERT_OK(decoded) << name;
    EXPECT_EQ(*decoded, spec) << name;
  }
}

// A newer version may have stored it. Its blocks have the fingerprint of the stored bytes.
TEST(NamespaceEncoding, ARecipeOfAnotherVersionComesBackAsItWasStored) {
  NamespaceSpec spec = Gqa();
  spec.recipe = "int9:group=64";
  const Result<NamespaceSpec> decoded = DecodeNamespaceSpec(Encode(spec));
  ASSERT_OK(decoded);
  EXPECT_EQ(*decoded, spec);
  EXPECT_EQ(Fingerprint(*decoded), Fingerprint(spec));
  EXPECT_FALSE(Validate(*decoded).ok());
}

TEST(NamespaceEncoding, EveryTruncationIsDataLoss) {
  for (const auto& [name, spec] : AllForms()) {
    const std::string bytes = Encode(spec);
    for (size_t n = 0; n < bytes.size(); ++n) {
      ASSERT_THAT(DecodeNamespaceSpec(bytes.substr(0, n)),
                  StatusIs(StatusCode::kDataLoss, HasSubstr("stored namespace")))
          << name << " cut to " << n;
    }
    EXPECT_THAT(DecodeNamespaceSpec(bytes + "x"),
                StatusIs(StatusCode::kDataLoss, HasSubstr("do not end")));
  }
}

TEST(NamespaceEncoding, EveryFlippedByteIsDataLossOrAnotherNamespace) {
  for (const auto& [name, spec] : AllForms()) {
    const std::string bytes = Encode(spec);
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ 0x81);
      const Result<NamespaceSpec> decoded = DecodeNamespaceSpec(damaged);
      if (decoded.ok()) {
        ASSERT_NE(Fingerprint(*decoded), Fingerprint(spec)) << name << " byte " << i;
      } else {
        ASSERT_EQ(decoded.status().code(), StatusCode::kDataLoss);
      }
    }
  }
}

struct Change {
  std::string field;
  std::function<void(NamespaceSpec&)> apply;
};

TEST(NamespaceFingerprint, EveryFieldChangesItAndIsNamedAlone) {
  const std::vector<Change> changes = {
      {"tenant", [](NamespaceSpec& s) { s.tenant = "other"; }},
      {"salt", [](NamespaceSpec& s) { s.salt = "pepper"; }},
      {"model", [](NamespaceSpec& s) { s.model = "m"; }},
      {"revision", [](NamespaceSpec& s) { s.revision = "r"; }},
      {"weight_epoch", [](NamespaceSpec& s) { s.weight_epoch = 1; }},
      {"layout.block_tokens", [](NamespaceSpec& s) { s.layout.block_tokens = 32; }},
      {"layout.native.key_rotation",
       [](NamespaceSpec& s) { Native(s).key_rotation = KeyRotation::kBeforeRope; }},
      {"layout.native.groups", [](NamespaceSpec& s) { Native(s).groups[0].count = 31; }},
      {"layout.native.groups",
       [](NamespaceSpec& s) { Native(s).groups[0].planes[0].dtype = DType::kBF16; }},
      {"layout.native.groups",
       [](NamespaceSpec& s) {
         Native(s).groups[0].planes = Kv(4, 64, DType::kF16);
         Native(s).kv_heads = 4;
       }},
      {"layout.form",
       [](NamespaceSpec& s) {
         s.layout.form = OpaqueLayout{"d", 1, 1};
       }},
      {"recipe", [](NamespaceSpec& s) { s.recipe = "int8"; }},
      {"numerics", [](NamespaceSpec& s) { s.numerics = "any"; }},
      {"key_version", [](NamespaceSpec& s) { s.key_version = 2; }},
      {"key_scheme", [](NamespaceSpec& s) { s.key_scheme = "other"; }},
  };
  std::set<Digest> seen = {Fingerprint(Gqa())};
  for (const Change& change : changes) {
    NamespaceSpec changed = Gqa();
    change.apply(changed);
    ASSERT_OK(Validate(changed)) << change.field;
    EXPECT_TRUE(seen.insert(Fingerprint(changed)).second) << change.field;
    const auto differences = Differences(Gqa(), changed);
    ASSERT_EQ(differences.size(), 1u) << change.field;
    EXPECT_EQ(differences[0].field, change.field);
    if (change.field == "salt") continue;
    EXPECT_NE(differences[0].stored, differences[0].requested);
  }
}

TEST(NamespaceFingerprint, EveryFieldOfAPoolChangesIt) {
  const std::vector<std::function<void(std::vector<Pool>&)>> changes = {
      [](auto& pools) { pools[1].name = "window"; },
      [](auto& pools) { pools[1].block_tokens = 64; },
      [](auto& pools) { pools[1].parts = 1; },
      [](auto& pools) { pools[1].max_part_bytes += 1; },
      [](auto& pools) { pools[1].chained = true; },
      [](auto& pools) { std::swap(pools[0], pools[1]); },
      [](auto& pools) { pools.pop_back(); },
  };
  std::set<Digest> seen = {Fingerprint(Pooled())};
  const FieldHashes before = HashFields(*CheckNamespace(Pooled()));
  for (const auto& change : changes) {
    NamespaceSpec changed = Pooled();
    change(PoolsOf(changed));
    ASSERT_OK(Validate(changed));
    EXPECT_TRUE(seen.insert(Fingerprint(changed)).second);
    const auto differences = Differences(Pooled(), changed);
    ASSERT_EQ(differences.size(), 1u);
    EXPECT_EQ(differences[0].field, "layout.opaque.pools");
    EXPECT_TRUE(DifferInOneField(before, HashFields(*CheckNamespace(changed))));
  }
}

TEST(DifferencesTest, HashesFindSpecsThatDifferInOneField) {
  const auto hashes = [](const NamespaceSpec& spec) { return HashFields(*CheckNamespace(spec)); };
  const FieldHashes before = hashes(Gqa());
  EXPECT_FALSE(DifferInOneField(before, before));
  NamespaceSpec one = Gqa();
  one.salt = "pepper";
  EXPECT_TRUE(DifferInOneField(before, hashes(one)));
  one.key_scheme = "other";
  EXPECT_FALSE(DifferInOneField(before, hashes(one)));
  NamespaceSpec groups = Gqa();
  Native(groups).groups[0].count = 31;
  EXPECT_TRUE(DifferInOneField(before, hashes(groups)));
  // Another form is one difference, whatever its fields are.
  NamespaceSpec opaque = Gqa();
  opaque.layout.form = OpaqueLayout{"d", 1, 1};
  EXPECT_TRUE(DifferInOneField(before, hashes(opaque)));
}

TEST(DifferencesTest, HideSaltsAndCutWhatIsLong) {
  NamespaceSpec a = Gqa(), b = Gqa();
  a.salt = "pepper";
  b.salt = "";
  const auto salts = Differences(a, b);
  ASSERT_EQ(salts.size(), 1u);
  EXPECT_EQ(salts[0].stored, salts[0].requested);
  EXPECT_EQ(salts[0].stored.find("706570706572"), std::string::npos);
  b = a;
  b.layout.form = OpaqueLayout{std::string(1000, 'd'), 1, 1};
  a.layout.form = OpaqueLayout{"d", 1, 1};
  const auto long_ones = Differences(a, b);
  ASSERT_EQ(long_ones.size(), 1u);
  EXPECT_LT(long_ones[0].requested.size(), 600u);
  EXPECT_TRUE(long_ones[0].requested.ends_with("(1000 characters)"));
}

TEST(NamespaceFingerprint, FieldsCannotRunIntoEachOther) {
  NamespaceSpec a = Gqa(), b = Gqa();
  a.model = "ab", a.revision = "c";
  b.model = "a", b.revision = "bc";
  EXPECT_NE(Fingerprint(a), Fingerprint(b));
}

TEST(NamespaceFingerprint, DecodersMergeEqualLayers) {
  NamespaceSpec split = Gqa();
  Native(split).groups = std::vector<LayerGroup>(65535, {1, Kv(3, 64, DType::kF16)});
  EXPECT_OK(Validate(split));
  NativeLayout merged;
  for (const LayerGroup& group : Native(split).groups) merged.Append(group);
  ASSERT_EQ(merged.groups.size(), 1u);
  EXPECT_EQ(merged.groups[0].count, 65535u);
  const auto decoded = DecodeNamespaceSpec(Encode(split));
  ASSERT_OK(decoded);
  EXPECT_EQ(std::get<NativeLayout>(decoded->layout.form).groups.size(), 1u);
  EXPECT_EQ(Fingerprint(*decoded), Fingerprint(split));
}

TEST(NamespaceFingerprint, SplittingARunOfEqualLayersChangesNothing) {
  NamespaceSpec split = Gqa();
  Native(split).groups = {{10, Kv(3, 64, DType::kF16)}, {20, Kv(3, 64, DType::kF16)}};
  EXPECT_EQ(Fingerprint(split), Fingerprint(Gqa()));
  EXPECT_EQ(Describe(split), Describe(Gqa()));
  EXPECT_THAT(Differences(split, Gqa()), IsEmpty());
}

TEST(NamespaceDescribe, ShowsLayoutsForPeople) {
  const auto differences = Differences(Gapped(), Mla());
  std::map<std::string, std::string> stored;
  for (const FieldDifference& d : differences) stored[d.field] = d.stored;
  EXPECT_EQ(
      stored["layout.native.groups"],
      "2 x {k: 8 x 128 bf16, v: 8 x 128 bf16}, 3 x {}, 1 x {k: 2 x 128 f8e4m3, v: 2 x 128 f8e4m3}");
  EXPECT_EQ(stored["salt"], "(hidden)");
}

TEST(NamespaceLayout, SliceBytesCountPlanesAndHeads) {
  const Layout gqa = Gqa().layout;
  EXPECT_EQ(gqa.Layers(), 30u);
  EXPECT_EQ(gqa.SliceBytes(0, 0, 3), 2u * 3 * 64 * 64 * 2);
  EXPECT_EQ(gqa.SliceBytes(29, 1, 2), 2u * 1 * 64 * 64 * 2);
  EXPECT_EQ(gqa.SliceBytes(30, 0, 3), 0u);

  const Layout gapped = Gapped().layout;
  EXPECT_EQ(gapped.Layers(), 6u);
  EXPECT_EQ(gapped.SliceBytes(1, 0, 8), 2u * 8 * 16 * 128 * 2);
  EXPECT_EQ(gapped.SliceBytes(3, 0, 8), 0u) << "a layer without planes";
  // Two heads on a grid of eight belong to whoever holds head 0.
  EXPECT_EQ(gapped.SliceBytes(5, 0, 4), 2u * 2 * 16 * 128 * 1);
  EXPECT_EQ(gapped.SliceBytes(5, 4, 8), 0u);

  EXPECT_EQ(Mla().layout.SliceBytes(60, 0, 1), 128u * (512 * 2 + 64 * 4));
  EXPECT_EQ(Opaque().layout.WholeRect(), (format::PartRect{0, 1, 0, 2}));
}

TEST(NamespaceLayout, APoolIsARowOfTheGrid) {
  const Layout pooled = Pooled().layout;
  EXPECT_EQ(pooled.WholeRect(), (format::PartRect{0, 3, 0, 3}));
  EXPECT_EQ(pooled.PoolCount(), 3u);
  EXPECT_EQ(pooled.WholeOf(0), (format::PartRect{0, 1, 0, 2}));
  EXPECT_EQ(pooled.WholeOf(2), (format::PartRect{2, 3, 0, 3}));
  EXPECT_EQ(pooled.PoolOf({1, 2, 0, 1}), 1u);
  EXPECT_EQ(pooled.BlockTokensOf(2), 544u);
  EXPECT_EQ(pooled.MaxPartBytesOf(1), 131072u);
  const Layout opaque = Opaque().layout;
  EXPECT_EQ(opaque.PoolCount(), 1u);
  EXPECT_EQ(opaque.WholeOf(0), opaque.WholeRect());
  EXPECT_EQ(opaque.PoolOf({0, 1, 1, 2}), 0u);
  EXPECT_EQ(opaque.BlockTokensOf(0), 256u);
  EXPECT_EQ(opaque.MaxPartBytesOf(0), uint64_t{4} << 20);
  EXPECT_EQ(Gqa().layout.WholeOf(0), Gqa().layout.WholeRect());
}

struct Refusal {
  std::string name;
  std::function<void(NamespaceSpec&)> apply;
  std::vector<std::string> message;  // Field, value, expectation.
};

// Long: a table of bad fields and the errors that name them.
TEST(NamespaceValidate, NamesFieldValueAndExpectation) {
  const std::vector<Refusal> refusals = {
      {"tenant empty",
       [](NamespaceSpec& s) { s.tenant = ""; },
       {"'tenant'", "0 characters", "1 to 128"}},
      {"tenant long",
       [](NamespaceSpec& s) { s.tenant = std::string(129, 'a'); },
       {"'tenant'", "129", "1 to 128"}},
      {"tenant charset",
       [](NamespaceSpec& s) { s.tenant = "a/b"; },
       {"'tenant'", "'a/b'", "[A-Za-z0-9._-]"}},
      {"salt",
       [](NamespaceSpec& s) { s.salt = std::string(257, 's'); },
       {"'salt'", "257", "0 to 256"}},
      {"model", [](NamespaceSpec& s) { s.model = ""; }, {"'model'", "0 characters", "1 to 512"}},
      {"model control",
       [](NamespaceSpec& s) { s.model = "a\nb"; },
       {"'model'", "0x0a at 1", "printable"}},
      {"revision",
       [](NamespaceSpec& s) { s.revision = std::string(513, 'r'); },
       {"'revision'", "513", "1 to 512"}},
      {"block_tokens 0",
       [](NamespaceSpec& s) { s.layout.block_tokens = 0; },
       {"'layout.block_tokens'", "got 0", "16, 32"}},
      {"block_tokens 8",
       [](NamespaceSpec& s) { s.layout.block_tokens = 8; },
       {"'layout.block_tokens'", "got 8", "16, 32"}},
      {"block_tokens 48",
       [](NamespaceSpec& s) { s.layout.block_tokens = 48; },
       {"'layout.block_tokens'", "48", "256"}},
      {"block_tokens 512",
       [](NamespaceSpec& s) { s.layout.block_tokens = 512; },
       {"'layout.block_tokens'", "512", "256"}},
      {"opaque block_tokens 0",
       [](NamespaceSpec& s) {
         s.layout = {.block_tokens = 0, .form = OpaqueLayout{"d", 1, 1}};
       },
       {"'layout.block_tokens'", "got 0", "1 to 65535"}},
      {"opaque block_tokens 65536",
       [](NamespaceSpec& s) {
         s.layout = {.block_tokens = 65536, .form = OpaqueLayout{"d", 1, 1}};
       },
       {"'layout.block_tokens'", "got 65536", "1 to 65535"}},
      {"no groups",
       [](NamespaceSpec& s) { Native(s).groups.clear(); },
       {"'layout.native.groups'", "0 layers", "1 to 65535"}},
      {"no planes",
       [](NamespaceSpec& s) { Native(s).groups[0].planes.clear(); },
       {"'layout.native.groups'", "no plane", "at least one"}},
      {"count",
       [](NamespaceSpec& s) { Native(s).groups[0].count = 0; },
       {"'layout.native.groups[0].count'", "got 0", "1 to 65535"}},
      {"too many layers",
       [](NamespaceSpec& s) {
         Native(s).groups = {{40000, Kv(3, 64, DType::kF16)}, {40000, {}}};
       },
       {"'layout.native.groups'", "80000", "1 to 65535"}},
      {"counts that wrap",
       [](NamespaceSpec& s) {
         Native(s).groups = std::vector<LayerGroup>(70000, {65535, Kv(3, 64, DType::kF16)});
       },
       {"'layout.native.groups'", "4587450000", "1 to 65535"}},
      {"groups",
       [](NamespaceSpec& s) {
         Native(s).groups = {{1, Kv(3, 64, DType::kF16)}};
         for (uint32_t i = 0; i < 1024; ++i)
           Native(s).groups.push_back({1, Kv(i % 2, 64, DType::kF16)});
         for (auto& group : Native(s).groups) {
           if (group.planes[0].heads == 0) group.planes.clear();
         }
       },
       {"'layout.native.groups'", "1025 groups", "at most 1024"}},
      {"planes in all",
       [](NamespaceSpec& s) {
         Native(s).groups.clear();
         for (uint32_t g = 0; g < 1000; ++g) {
           LayerGroup& group = Native(s).groups.emplace_back(LayerGroup{.count = 1, .planes = {}});
           for (uint32_t p = 0; p < 5; ++p) {
             group.planes.push_back({fmt::format("p{}", p), 3, 1 + g, DType::kF16});
           }
         }
       },
       {"'layout.native.groups'", "5000 planes", "at most 4096"}},
      {"planes",
       [](NamespaceSpec& s) { Native(s).groups[0].planes.resize(17); },
       {"groups[0].planes'", "17", "at most 16"}},
      {"plane name",
       [](NamespaceSpec& s) { Native(s).groups[0].planes[1].name = "V"; },
       {"planes[1].name'", "'V'", "[a-z0-9_]"}},
      {"plane twice",
       [](NamespaceSpec& s) { Native(s).groups[0].planes[1].name = "k"; },
       {"planes[1].name'", "'k' twice", "differ"}},
      {"heads 0",
       [](NamespaceSpec& s) { Native(s).groups[0].planes[0].heads = 0; },
       {"planes[0].heads'", "got 0", "1 to 1024"}},
      {"heads 1025",
       [](NamespaceSpec& s) { Native(s).groups[0].planes[0].heads = 1025; },
       {"planes[0].heads'", "1025", "1 to 1024"}},
      {"dim",
       [](NamespaceSpec& s) { Native(s).groups[0].planes[0].dim = 65537; },
       {"planes[0].dim'", "65537", "1 to 65536"}},
      {"dtype",
       [](NamespaceSpec& s) { Native(s).groups[0].planes[0].dtype = DType{9}; },
       {"planes[0].dtype'", "got 9", "bf16"}},
      {"kv_heads",
       [](NamespaceSpec& s) { Native(s).kv_heads = 4; },
       {"'layout.native.kv_heads'", "got 4", "expected 3"}},
      {"rotation",
       [](NamespaceSpec& s) { Native(s).key_rotation = KeyRotation{0}; },
       {"'layout.native.key_rotation'", "got 0", "after_rope"}},
      {"description",
       [](NamespaceSpec& s) {
         s.layout.form = OpaqueLayout{"", 1, 1};
       },
       {"'layout.opaque.description'", "0", "1 to 1024"}},
      {"part bytes",
       [](NamespaceSpec& s) {
         s.layout.form = OpaqueLayout{"d", (64 << 20) + 1, 1};
       },
       {"'layout.opaque.max_part_bytes'", "67108865", "67108864"}},
      {"parts",
       [](NamespaceSpec& s) {
         s.layout.form = OpaqueLayout{"d", 1, 0};
       },
       {"'layout.opaque.parts'", "got 0", "1 to 1024"}},
      {"recipe", [](NamespaceSpec& s) { s.recipe = ""; }, {"'recipe'", "0", "1 to 1024"}},
      {"unknown recipe", [](NamespaceSpec& s) { s.recipe = "int5"; }, {"'recipe'", "int5", "int8"}},
      {"numerics",
       [](NamespaceSpec& s) { s.numerics = std::string(257, 'n'); },
       {"'numerics'", "257", "1 to 256"}},
      {"key_version 0",
       [](NamespaceSpec& s) { s.key_version = 0; },
       {"'key_version'", "got 0", "1 to 65535"}},
      {"key_version big",
       [](NamespaceSpec& s) { s.key_version = 65536; },
       {"'key_version'", "65536", "1 to 65535"}},
      {"key_scheme",
       [](NamespaceSpec& s) { s.key_scheme = ""; },
       {"'key_scheme'", "0", "1 to 128"}},
  };
  for (const Refusal& refusal : refusals) {
    NamespaceSpec spec = Gqa();
    refusal.apply(spec);
    const Status status = Validate(spec);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << refusal.name;
    for (const std::string& part : refusal.message) {
      EXPECT_THAT(Message(status), HasSubstr(part)) << refusal.name;
    }
  }
}

// Long: a table of bad fields and the errors that name them.
TEST(NamespaceValidate, NamesWhatIsWrongWithPools) {
  const auto opaque = [](NamespaceSpec& s) -> OpaqueLayout& {
    return std::get<OpaqueLayout>(s.layout.form);
  };
  const std::vector<Refusal> refusals = {
      {"too many",
       [](NamespaceSpec& s) { PoolsOf(s).resize(33, PoolsOf(s)[0]); },
       {"'layout.opaque.pools'", "33 pools", "at most 32"}},
      {"far too many",
       [](NamespaceSpec& s) { PoolsOf(s).resize(65536); },
       {"'layout.opaque.pools'", "65536 pools", "at most 32"}},
      {"parts of all",
       [&](NamespaceSpec& s) { opaque(s).parts = 2; },
       {"'layout.opaque.parts'", "got 2", "expected 0"}},
      {"bytes of all",
       [&](NamespaceSpec& s) { opaque(s).max_part_bytes = 7; },
       {"'layout.opaque.max_part_bytes'", "got 7", "expected 0"}},
      {"no name",
       [](NamespaceSpec& s) { PoolsOf(s)[1].name = ""; },
       {"'layout.opaque.pools[1].name'", "0 characters", "1 to 32"}},
      {"long name",
       [](NamespaceSpec& s) { PoolsOf(s)[1].name = std::string(33, 'w'); },
       {"pools[1].name'", "33", "1 to 32"}},
      {"odd name",
       [](NamespaceSpec& s) { PoolsOf(s)[1].name = "Window"; },
       {"pools[1].name'", "'Window'", "[a-z0-9_]"}},
      {"name twice",
       [](NamespaceSpec& s) { PoolsOf(s)[2].name = "full"; },
       {"pools[2].name'", "'full' twice", "differ"}},
      {"no tokens",
       [](NamespaceSpec& s) { PoolsOf(s)[0].block_tokens = 0; },
       {"pools[0].block_tokens'", "got 0", "1 to 65535"}},
      {"many tokens",
       [](NamespaceSpec& s) { PoolsOf(s)[0].block_tokens = 65536; },
       {"pools[0].block_tokens'", "65536", "1 to 65535"}},
      {"no multiple",
       [](NamespaceSpec& s) { PoolsOf(s)[1].block_tokens = 40; },
       {"pools[1].block_tokens'", "got 40", "multiple of layout.block_tokens, which is 16"}},
      {"less than a unit",
       [](NamespaceSpec& s) { PoolsOf(s)[1].block_tokens = 8; },
       {"pools[1].block_tokens'", "got 8", "multiple"}},
      {"no parts",
       [](NamespaceSpec& s) { PoolsOf(s)[2].parts = 0; },
       {"pools[2].parts'", "got 0", "1 to 1024"}},
      {"many parts",
       [](NamespaceSpec& s) { PoolsOf(s)[2].parts = 1025; },
       {"pools[2].parts'", "1025", "1 to 1024"}},
      {"no bytes",
       [](NamespaceSpec& s) { PoolsOf(s)[2].max_part_bytes = 0; },
       {"pools[2].max_part_bytes'", "got 0", "1 to 67108864"}},
      {"many bytes",
       [](NamespaceSpec& s) { PoolsOf(s)[2].max_part_bytes = (64 << 20) + 1; },
       {"pools[2].max_part_bytes'", "67108865", "1 to 67108864"}},
      {"no unit",
       [](NamespaceSpec& s) { s.layout.block_tokens = 0; },
       {"'layout.block_tokens'", "got 0"}},
  };
  for (const Refusal& refusal : refusals) {
    NamespaceSpec spec = Pooled();
    refusal.apply(spec);
    const Status status = Validate(spec);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << refusal.name;
    for (const std::string& part : refusal.message) {
      EXPECT_THAT(Message(status), HasSubstr(part)) << refusal.name;
    }
  }
}

TEST(NamespaceEncoding, MorePoolsThanAnIndexCanTellApartAreDataLoss) {
  NamespaceSpec spec = Pooled();
  PoolsOf(spec).resize(kMaxPools + 1);
  EXPECT_THAT(DecodeNamespaceSpec(Encode(spec)), StatusIs(StatusCode::kDataLoss, ::testing::_));
  PoolsOf(spec).resize(kMaxPools);
  EXPECT_OK(DecodeNamespaceSpec(Encode(spec)));
}

TEST(PoolKeysTest, ABlockHasTheKeyOfItsLastUnit) {
  BlockKeyChain chain(Fingerprint(Pooled()));
  const std::vector<BlockKey> units = chain.Keys(std::vector<int32_t>(16 * 7, 5), 16);
  ASSERT_EQ(units.size(), 7u);
  EXPECT_THAT(PoolKeys(units, 3, 2), ElementsAre(PoolKey(units[2], 2), PoolKey(units[5], 2)));
  EXPECT_EQ(PoolKeys(units, 1, 0), units);
  EXPECT_THAT(PoolKeys(units, 8, 1), IsEmpty());
}

TEST(NamespaceValidate, EnginesChooseTheSizeOfOpaqueBlocks) {
  std::set<Digest> seen;
  for (const uint32_t tokens : {1u, 48u, 128u, 544u, 65535u}) {
    NamespaceSpec spec = Gqa();
    spec.layout = {.block_tokens = tokens, .form = OpaqueLayout{"d", 1, 1}};
    EXPECT_OK(Validate(spec)) << tokens;
    const Result<NamespaceSpec> decoded = DecodeNamespaceSpec(Encode(spec));
    ASSERT_OK(decoded.status()) << tokens;
    EXPECT_EQ(decoded->layout.block_tokens, tokens);
    EXPECT_TRUE(seen.insert(Fingerprint(*decoded)).second) << tokens;
  }
}

TEST(BlockKeyChainTest, KeysAreTheFullBlocksAndChain) {
  BlockKeyChain chain(Fingerprint(Gqa()));
  std::vector<int32_t> tokens(100);
  std::iota(tokens.begin(), tokens.end(), 0);
  const std::vector<BlockKey> keys = chain.Keys(tokens, 16);
  ASSERT_EQ(keys.size(), 6u) << "the last 4 tokens are not a block";
  EXPECT_EQ(keys[1], chain.Next(keys[0], std::span(tokens).subspan(16, 16)));

  // Another first token changes every key; another last token only the last.
  std::vector<int32_t> other = tokens;
  other[95] = -5;
  std::vector<BlockKey> changed = chain.Keys(other, 16);
  EXPECT_TRUE(std::equal(keys.begin(), keys.end() - 1, changed.begin()));
  EXPECT_NE(keys.back(), changed.back());
  other = tokens;
  other[0] = -5;
  changed = chain.Keys(other, 16);
  for (size_t i = 0; i < keys.size(); ++i) EXPECT_NE(keys[i], changed[i]);

  EXPECT_THAT(chain.Keys(tokens, 0), IsEmpty());
  EXPECT_THAT(chain.Keys({}, 16), IsEmpty());
}

TEST(BlockKeyChainTest, NamespacesShareNoKeys) {
  const std::vector<int32_t> tokens(16, 1);
  NamespaceSpec salted = Gqa();
  salted.salt = "s";
  EXPECT_NE(BlockKeyChain(Fingerprint(Gqa())).Keys(tokens, 16),
            BlockKeyChain(Fingerprint(salted)).Keys(tokens, 16));
}

}  // namespace
}  // namespace cairn
