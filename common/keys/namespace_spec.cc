#include "cairn/common/namespace_spec.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "common/keys/canonical_form.h"
#include "common/keys/checked_namespace.h"

namespace cairn {
namespace {

constexpr uint32_t kMaxPlanes = 16;
constexpr uint32_t kMaxHeads = 1024;
constexpr uint32_t kMaxLayers = 65535;
// Groups in the canonical form. The facts about a layout take as much memory as these.
constexpr size_t kMaxGroups = 1024;
constexpr size_t kMaxPlanesInAll = 4096;
constexpr uint64_t kMaxPartBytes = 64ull << 20;
// The header of a part has 16 bits for them.
constexpr uint32_t kMaxOpaqueTokens = 65535;

Status CheckText(std::string_view field, std::string_view value, size_t min, size_t max) {
  if (value.size() < min || value.size() > max) {
    return InvalidArgument("field '{}': got {} characters, expected {} to {}", field, value.size(),
                           min, max);
  }
  // They go into logs and error messages.
  const auto bad = std::find_if(value.begin(), value.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (bad != value.end()) {
    return InvalidArgument(
        "field '{}': got control character 0x{:02x} at {}, expected printable text", field,
        static_cast<unsigned>(static_cast<unsigned char>(*bad)), bad - value.begin());
  }
  return OkStatus();
}

// Text of characters that `allowed` accepts.
template <typename Allowed>
Status CheckName(std::string_view field, std::string_view value, size_t max,
                 std::string_view characters, Allowed allowed) {
  CAIRN_RETURN_IF_ERROR(CheckText(field, value, 1, max));
  if (!std::all_of(value.begin(), value.end(), allowed)) {
    return InvalidArgument("field '{}': got '{}', expected characters of {}", field, value,
                           characters);
  }
  return OkStatus();
}

Status CheckRange(std::string_view field, uint64_t value, uint64_t min, uint64_t max) {
  if (value < min || value > max) {
    return InvalidArgument("field '{}': got {}, expected {} to {}", field, value, min, max);
  }
  return OkStatus();
}

bool IsLowerAlnum(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

Status ValidatePlane(const std::string& field, const Plane& plane) {
  CAIRN_RETURN_IF_ERROR(CheckName(field + ".name", plane.name, 32, "[a-z0-9_]",
                                  [](char c) { return IsLowerAlnum(c) || c == '_'; }));
  CAIRN_RETURN_IF_ERROR(CheckRange(field + ".heads", plane.heads, 1, kMaxHeads));
  CAIRN_RETURN_IF_ERROR(CheckRange(field + ".dim", plane.dim, 1, 65536));
  if (DTypeBytes(plane.dtype) == 0) {
    return InvalidArgument("field '{}.dtype': got {}, expected f16, bf16, f32, f8e4m3 or i8", field,
                           static_cast<unsigned>(plane.dtype));
  }
  return OkStatus();
}

// Groups of the canonical form.
size_t CountGroups(const std::vector<LayerGroup>& groups) {
  size_t count = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    count += g == 0 || groups[g].planes != groups[g - 1].planes;
  }
  return count;
}

Status ValidateNative(const NativeLayout& native) {
  uint64_t layers = 0;
  size_t planes = 0;  // Planes in the canonical form.
  uint32_t most_heads = 0;
  for (size_t g = 0; g < native.groups.size(); ++g) {
    const LayerGroup& group = native.groups[g];
    const std::string field = fmt::format("layout.native.groups[{}]", g);
    CAIRN_RETURN_IF_ERROR(CheckRange(field + ".count", group.count, 1, kMaxLayers));
    layers += group.count;
    if (g == 0 || group.planes != native.groups[g - 1].planes) planes += group.planes.size();
    if (group.planes.size() > kMaxPlanes) {
      return InvalidArgument("field '{}.planes': got {} planes, expected at most {}", field,
                             group.planes.size(), kMaxPlanes);
    }
    for (size_t p = 0; p < group.planes.size(); ++p) {
      const std::string plane_field = fmt::format("{}.planes[{}]", field, p);
      CAIRN_RETURN_IF_ERROR(ValidatePlane(plane_field, group.planes[p]));
      for (size_t q = 0; q < p; ++q) {
        if (group.planes[q].name == group.planes[p].name) {
          return InvalidArgument(
              "field '{}.name': got '{}' twice, expected names that differ within a layer",
              plane_field, group.planes[p].name);
        }
      }
      most_heads = std::max(most_heads, group.planes[p].heads);
    }
  }
  if (layers < 1 || layers > kMaxLayers) {
    return InvalidArgument("field 'layout.native.groups': got {} layers in all, expected 1 to {}",
                           layers, kMaxLayers);
  }
  if (const size_t groups = CountGroups(native.groups); groups > kMaxGroups) {
    return InvalidArgument(
        "field 'layout.native.groups': got {} groups that differ from their neighbours, expected "
        "at most {}",
        groups, kMaxGroups);
  }
  if (planes > kMaxPlanesInAll) {
    return InvalidArgument(
        "field 'layout.native.groups': got {} planes in all groups, expected at most {}", planes,
        kMaxPlanesInAll);
  }
  if (most_heads == 0) {
    return InvalidArgument(
        "field 'layout.native.groups': got no plane in any layer, expected at least one");
  }
  if (native.kv_heads != most_heads) {
    return InvalidArgument(
        "field 'layout.native.kv_heads': got {}, expected {}, the largest 'heads' of all planes",
        native.kv_heads, most_heads);
  }
  if (native.key_rotation != KeyRotation::kAfterRope &&
      native.key_rotation != KeyRotation::kBeforeRope) {
    return InvalidArgument(
        "field 'layout.native.key_rotation': got {}, expected after_rope or before_rope",
        static_cast<unsigned>(native.key_rotation));
  }
  return OkStatus();
}

Status ValidatePool(const OpaqueLayout& opaque, size_t number, uint32_t unit) {
  const Pool& pool = opaque.pools[number];
  const std::string field = fmt::format("layout.opaque.pools[{}]", number);
  CAIRN_RETURN_IF_ERROR(CheckName(field + ".name", pool.name, 32, "[a-z0-9_]",
                                  [](char c) { return IsLowerAlnum(c) || c == '_'; }));
  for (size_t other = 0; other < number; ++other) {
    if (opaque.pools[other].name == pool.name) {
      return InvalidArgument("field '{}.name': got '{}' twice, expected names that differ", field,
                             pool.name);
    }
  }
  CAIRN_RETURN_IF_ERROR(
      CheckRange(field + ".block_tokens", pool.block_tokens, 1, kMaxOpaqueTokens));
  if (pool.block_tokens % unit != 0) {
    return InvalidArgument(
        "field '{}.block_tokens': got {}, expected a multiple of layout.block_tokens, which is {}",
        field, pool.block_tokens, unit);
  }
  CAIRN_RETURN_IF_ERROR(CheckRange(field + ".parts", pool.parts, 1, kMaxHeads));
  return CheckRange(field + ".max_part_bytes", pool.max_part_bytes, 1, kMaxPartBytes);
}

// REQUIRES: unit > 0.
Status ValidateOpaque(const OpaqueLayout& opaque, uint32_t unit) {
  CAIRN_RETURN_IF_ERROR(CheckText("layout.opaque.description", opaque.description, 1, 1024));
  if (!opaque.pools.empty()) {
    CAIRN_RETURN_IF_ERROR(CheckPoolCount(opaque.pools.size()));
    // A version that knows no pools refuses these: it must not take the namespace for one of blocks
    // that are all alike.
    if (opaque.max_part_bytes != 0 || opaque.parts != 0) {
      return InvalidArgument(
          "field 'layout.opaque.{}': got {}, expected 0: each of the pools has its own",
          opaque.parts != 0 ? "parts" : "max_part_bytes",
          opaque.parts != 0 ? opaque.parts : opaque.max_part_bytes);
    }
    for (size_t p = 0; p < opaque.pools.size(); ++p) {
      CAIRN_RETURN_IF_ERROR(ValidatePool(opaque, p, unit));
    }
    return OkStatus();
  }
  CAIRN_RETURN_IF_ERROR(
      CheckRange("layout.opaque.max_part_bytes", opaque.max_part_bytes, 1, kMaxPartBytes));
  return CheckRange("layout.opaque.parts", opaque.parts, 1, kMaxHeads);
}

// Engines choose the sizes of their own blocks, as pages of 544 tokens that have room for a layer's
// state. Kernels read native blocks in groups of tokens.
Status CheckBlockTokens(const Layout& layout) {
  const uint32_t tokens = layout.block_tokens;
  if (!layout.IsNative()) return CheckRange("layout.block_tokens", tokens, 1, kMaxOpaqueTokens);
  if (tokens >= 16 && tokens <= 256 && std::has_single_bit(tokens)) return OkStatus();
  return InvalidArgument("field 'layout.block_tokens': got {}, expected 16, 32, 64, 128 or 256",
                         tokens);
}

// "30 x {k: 3 x 64 f16, v: 3 x 64 f16}, 2 x {}".
std::string DescribeGroups(const NativeLayout& native) {
  std::string out;
  for (const LayerGroup& group : CanonicalGroups(native.groups)) {
    out += fmt::format("{}{} x {{", out.empty() ? "" : ", ", group.count);
    for (size_t p = 0; p < group.planes.size(); ++p) {
      const Plane& plane = group.planes[p];
      out += fmt::format("{}{}: {} x {} {}", p == 0 ? "" : ", ", plane.name, plane.heads, plane.dim,
                         Name(plane.dtype));
    }
    out += '}';
  }
  return out;
}

// "full: 16 tokens, 2 parts of 65536 bytes, chained; state: 544 tokens, 2 parts of 4096 bytes".
std::string DescribePools(const std::vector<Pool>& pools) {
  std::string out;
  for (const Pool& pool : pools) {
    out += fmt::format("{}{}: {} tokens, {} parts of {} bytes{}", out.empty() ? "" : "; ",
                       pool.name, pool.block_tokens, pool.parts, pool.max_part_bytes,
                       pool.chained ? ", chained" : "");
  }
  return out;
}

std::string_view Name(KeyRotation rotation) {
  return rotation == KeyRotation::kBeforeRope ? "before_rope" : "after_rope";
}

std::string HexOf(std::string_view bytes) {
  std::string out;
  for (char c : bytes) {
    out += fmt::format("{:02x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return out;
}

}  // namespace

std::vector<LayerGroup> CanonicalGroups(const std::vector<LayerGroup>& groups) {
  NativeLayout merged;
  for (const LayerGroup& group : groups) merged.Append(group);
  return std::move(merged.groups);
}

void NativeLayout::Append(LayerGroup group) {
  // Counts that no layout has stay as they are, for Validate.
  if (!groups.empty() && groups.back().planes == group.planes && groups.back().count > 0 &&
      group.count > 0 && uint64_t{groups.back().count} + group.count <= kMaxLayers) {
    groups.back().count += group.count;
  } else {
    groups.push_back(std::move(group));
  }
}

uint32_t DTypeBytes(DType dtype) {
  switch (dtype) {
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kF32:
      return 4;
    case DType::kF8E4M3:
    case DType::kI8:
      return 1;
  }
  return 0;
}

std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kF32:
      return "f32";
    case DType::kF8E4M3:
      return "f8e4m3";
    case DType::kI8:
      return "i8";
  }
  return "unknown";
}

uint32_t Layout::Layers() const {
  const auto* native = std::get_if<NativeLayout>(&form);
  if (native == nullptr) return PoolCount();
  uint32_t layers = 0;
  for (const LayerGroup& group : native->groups) layers += group.count;
  return layers;
}

uint32_t Layout::KvHeads() const {
  const auto* native = std::get_if<NativeLayout>(&form);
  if (native != nullptr) return native->kv_heads;
  uint32_t most = std::get<OpaqueLayout>(form).parts;
  for (const Pool& pool : Pools()) most = std::max(most, pool.parts);
  return most;
}

std::span<const Pool> Layout::Pools() const {
  const auto* opaque = std::get_if<OpaqueLayout>(&form);
  return opaque == nullptr ? std::span<const Pool>() : opaque->pools;
}

format::PartRect Layout::WholeOf(uint32_t pool) const {
  if (Pools().empty()) return WholeRect();
  return {.layer_begin = static_cast<uint16_t>(pool),
          .layer_end = static_cast<uint16_t>(pool + 1),
          .head_begin = 0,
          .head_end = static_cast<uint16_t>(Pools()[pool].parts)};
}

uint32_t Layout::BlockTokensOf(uint32_t pool) const {
  return Pools().empty() ? block_tokens : Pools()[pool].block_tokens;
}

uint64_t Layout::MaxPartBytesOf(uint32_t pool) const {
  return Pools().empty() ? std::get<OpaqueLayout>(form).max_part_bytes
                         : Pools()[pool].max_part_bytes;
}

format::PartRect Layout::WholeRect() const {
  return {.layer_begin = 0,
          .layer_end = static_cast<uint16_t>(Layers()),
          .head_begin = 0,
          .head_end = static_cast<uint16_t>(KvHeads())};
}

std::span<const Plane> Layout::PlanesOf(uint32_t layer) const {
  for (const LayerGroup& group : std::get<NativeLayout>(form).groups) {
    if (layer < group.count) return group.planes;
    layer -= group.count;
  }
  return {};
}

HeadRange Layout::PlaneHeads(const Plane& plane, uint32_t head_begin, uint32_t head_end) const {
  if (plane.heads == KvHeads()) return {head_begin, head_end};
  // Fewer heads than the grid: the plane belongs whole to the part that holds head 0.
  return head_begin == 0 ? HeadRange{0, plane.heads} : HeadRange{0, 0};
}

uint64_t Layout::SliceBytes(uint32_t layer, uint32_t head_begin, uint32_t head_end) const {
  uint64_t bytes = 0;
  for (const Plane& plane : PlanesOf(layer)) {
    const HeadRange heads = PlaneHeads(plane, head_begin, head_end);
    bytes += uint64_t{heads.end - heads.begin} * block_tokens * plane.dim * DTypeBytes(plane.dtype);
  }
  return bytes;
}

namespace {

// The recipe's value.
Result<Recipe> CheckFields(const NamespaceSpec& spec) {
  CAIRN_RETURN_IF_ERROR(CheckName("tenant", spec.tenant, 128, "[A-Za-z0-9._-]", [](char c) {
    return IsLowerAlnum(c) || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' || c == '-';
  }));
  if (spec.salt.size() > 256) {
    return InvalidArgument("field 'salt': got {} bytes, expected 0 to 256", spec.salt.size());
  }
  CAIRN_RETURN_IF_ERROR(CheckText("model", spec.model, 1, 512));
  CAIRN_RETURN_IF_ERROR(CheckText("revision", spec.revision, 1, 512));
  CAIRN_RETURN_IF_ERROR(CheckBlockTokens(spec.layout));
  if (const auto* native = std::get_if<NativeLayout>(&spec.layout.form)) {
    CAIRN_RETURN_IF_ERROR(ValidateNative(*native));
  } else {
    CAIRN_RETURN_IF_ERROR(
        ValidateOpaque(std::get<OpaqueLayout>(spec.layout.form), spec.layout.block_tokens));
  }
  CAIRN_RETURN_IF_ERROR(CheckText("recipe", spec.recipe, 1, 1024));
  Result<Recipe> recipe = ParseRecipe(spec.recipe);
  if (!recipe.ok()) return InvalidArgument("field 'recipe': {}", Message(recipe.status()));
  CAIRN_RETURN_IF_ERROR(CheckText("numerics", spec.numerics, 1, 256));
  CAIRN_RETURN_IF_ERROR(CheckRange("key_version", spec.key_version, 1, 65535));
  CAIRN_RETURN_IF_ERROR(CheckText("key_scheme", spec.key_scheme, 1, 128));
  return recipe;
}

using Description = std::vector<std::pair<std::string, std::string>>;

// `recipe`: in its canonical form.
Description DescribeWith(const NamespaceSpec& spec, std::string recipe) {
  Description out;
  out.emplace_back("tenant", spec.tenant);
  out.emplace_back("salt", HexOf(spec.salt));
  out.emplace_back("model", spec.model);
  out.emplace_back("revision", spec.revision);
  out.emplace_back("weight_epoch", fmt::format("{}", spec.weight_epoch));
  out.emplace_back("layout.block_tokens", fmt::format("{}", spec.layout.block_tokens));
  if (const auto* native = std::get_if<NativeLayout>(&spec.layout.form)) {
    // kv_heads follows from the groups: listing it too would make one changed setting look like
    // two.
    out.emplace_back("layout.form", "native");
    out.emplace_back("layout.native.key_rotation", std::string(Name(native->key_rotation)));
    out.emplace_back("layout.native.groups", DescribeGroups(*native));
  } else {
    const auto& opaque = std::get<OpaqueLayout>(spec.layout.form);
    out.emplace_back("layout.form", "opaque");
    out.emplace_back("layout.opaque.description", opaque.description);
    out.emplace_back("layout.opaque.max_part_bytes", fmt::format("{}", opaque.max_part_bytes));
    out.emplace_back("layout.opaque.parts", fmt::format("{}", opaque.parts));
    if (!opaque.pools.empty()) {
      out.emplace_back("layout.opaque.pools", DescribePools(opaque.pools));
    }
  }
  out.emplace_back("recipe", std::move(recipe));
  out.emplace_back("numerics", spec.numerics);
  out.emplace_back("key_version", fmt::format("{}", spec.key_version));
  out.emplace_back("key_scheme", spec.key_scheme);
  return out;
}

// Characters of a value that are shown in a difference. They go into answers and logs.
constexpr size_t kMostShown = 512;

std::string Shown(const std::string& field, const std::string& value) {
  // A caller with another salt must not learn this one, nor its length. Logs must not show it,
  // either.
  if (field == "salt") return "(hidden)";
  if (value.size() <= kMostShown) return value;
  return fmt::format("{}... ({} characters)", std::string_view(value).substr(0, kMostShown),
                     value.size());
}

std::vector<FieldDifference> Compare(const Description& stored, const Description& requested) {
  std::vector<FieldDifference> out;
  for (const auto& [field, value] : stored) {
    const auto other =
        std::find_if(requested.begin(), requested.end(),
                     [&name = field](const auto& entry) { return entry.first == name; });
    // Fields of a form that the other side does not have: "layout.form" says it all.
    if (other == requested.end() || other->second == value) continue;
    out.push_back({field, Shown(field, value), Shown(field, other->second)});
  }
  return out;
}

}  // namespace

Status CheckPoolCount(size_t pools) {
  if (pools <= kMaxPools) return OkStatus();
  return InvalidArgument("field 'layout.opaque.pools': got {} pools, expected at most {}", pools,
                         kMaxPools);
}

Status Validate(const NamespaceSpec& spec) { return CheckFields(spec).status(); }

Result<CheckedNamespace> CheckNamespace(const NamespaceSpec& spec) {
  CAIRN_ASSIGN_OR_RETURN(Recipe recipe, CheckFields(spec));
  const Digest fingerprint = Sha256::Of(Encode(spec, recipe.Canonical()));
  return CheckedNamespace{spec, std::move(recipe), fingerprint};
}

namespace {

// The fields of a form stand in the middle of a description; their hashes stand at the end.
constexpr size_t kFormName = 6;
constexpr size_t kFieldsOfForm = 11;

}  // namespace

FieldHashes HashFields(const CheckedNamespace& ns) {
  FieldHashes hashes{};
  size_t at = 0, of_form = kFieldsOfForm;
  for (const auto& [field, value] : DescribeWith(ns.spec, ns.recipe.Canonical())) {
    const bool in_form = field.starts_with("layout.native.") || field.starts_with("layout.opaque.");
    hashes.at(in_form ? of_form++ : at++) = Xxh3(std::as_bytes(std::span(value)));
  }
  return hashes;
}

bool DifferInOneField(const FieldHashes& a, const FieldHashes& b) {
  size_t differences = 0;
  const size_t fields = a[kFormName] == b[kFormName] ? a.size() : kFieldsOfForm;
  for (size_t i = 0; i < fields; ++i) differences += a[i] != b[i];
  return differences == 1;
}

std::string CanonicalRecipeOf(const NamespaceSpec& spec) {
  const Result<std::string> canonical = CanonicalRecipe(spec.recipe);
  return canonical.ok() ? *canonical : spec.recipe;
}

std::vector<std::pair<std::string, std::string>> Describe(const NamespaceSpec& spec) {
  return DescribeWith(spec, CanonicalRecipeOf(spec));
}

std::vector<FieldDifference> Differences(const NamespaceSpec& stored,
                                         const NamespaceSpec& requested) {
  return Compare(Describe(stored), Describe(requested));
}

std::vector<FieldDifference> Differences(const NamespaceSpec& stored, const Recipe& stored_recipe,
                                         const NamespaceSpec& requested,
                                         const Recipe& requested_recipe) {
  return Compare(DescribeWith(stored, stored_recipe.Canonical()),
                 DescribeWith(requested, requested_recipe.Canonical()));
}

}  // namespace cairn
