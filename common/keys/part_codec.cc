#include "common/keys/part_codec.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string>

namespace cairn {
namespace {

format::Codec IdOf(const RecipeCodec& codec) { return static_cast<format::Codec>(codec.info->id); }

// "k: 2 x 64 f16, v: 2 x 64 bf16".
std::string NamesOf(std::span<const Plane> planes) {
  std::string out;
  for (const Plane& plane : planes) {
    out += fmt::format("{}{}: {} x {} {}", out.empty() ? "" : ", ", plane.name, plane.heads,
                       plane.dim, Name(plane.dtype));
  }
  return out;
}

bool AreKeysAndValuesOfHalves(std::span<const Plane> planes) {
  return planes.size() == 2 && planes[0].name == "k" && planes[1].name == "v" &&
         planes[0].dtype == DType::kF16 && planes[1].dtype == DType::kF16;
}

// Which plane a codec other than raw cannot read, and why. REQUIRES: not
// AreKeysAndValuesOfHalves(planes).
std::string WrongPlane(std::span<const Plane> planes) {
  constexpr std::string_view kNames[] = {"k", "v"};
  for (size_t i = 0; i < planes.size(); ++i) {
    const Plane& plane = planes[i];
    if (i >= std::size(kNames)) return fmt::format("plane '{}' is one too many", plane.name);
    if (plane.name != kNames[i]) {
      return fmt::format("plane '{}' stands where '{}' is expected", plane.name, kNames[i]);
    }
    if (plane.dtype != DType::kF16) {
      return fmt::format("plane '{}' is {}", plane.name, Name(plane.dtype));
    }
  }
  return "plane 'v' is missing";
}

// Whether these codecs can store the planes of one layer.
Status CheckPlanes(const CheckedNamespace& ns, const PartCodecs& codecs,
                   std::span<const Plane> planes, uint32_t layer) {
  const Layout& layout = ns.spec.layout;
  if (codecs.selected &&
      !(AreKeysAndValuesOfHalves(planes) && planes[0].heads == layout.KvHeads() &&
        planes[1].heads == layout.KvHeads())) {
    return InvalidArgument(
        "field 'recipe': got the selection '{}', expected planes 'k' and 'v' of f16 with {} heads "
        "each; layer {} has {}{}",
        ns.spec.recipe, layout.KvHeads(), layer, NamesOf(planes),
        AreKeysAndValuesOfHalves(planes) ? "" : ": " + WrongPlane(planes));
  }
  if (!AreKeysAndValuesOfHalves(planes)) {
    return InvalidArgument(
        "field 'recipe': got '{}', expected raw, or planes 'k' and 'v' of f16 in this order; layer "
        "{} has {}: {}",
        ns.spec.recipe, layer, NamesOf(planes), WrongPlane(planes));
  }
  const codecs::SliceShape shape = {.tokens = layout.block_tokens,
                                    .k_heads = planes[0].heads,
                                    .k_dim = planes[0].dim,
                                    .v_heads = planes[1].heads,
                                    .v_dim = planes[1].dim};
  for (const auto& codec : codecs.rungs) {
    const std::string why = codec->Supports(shape, {.layer = layer, .first_position = 0});
    if (why.empty()) continue;
    return InvalidArgument("field 'recipe': got '{}', but '{}' cannot store layer {}: {}",
                           ns.spec.recipe, codec->name(), layer, why);
  }
  return OkStatus();
}

Status CheckLayout(const CheckedNamespace& ns, const PartCodecs& codecs) {
  uint32_t layer = 0;
  // By groups: a namespace may have 65535 layers, and those of a group are alike.
  for (const LayerGroup& group : std::get<NativeLayout>(ns.spec.layout.form).groups) {
    if (!group.planes.empty()) {
      CAIRN_RETURN_IF_ERROR(CheckPlanes(ns, codecs, group.planes, layer));
    }
    layer += group.count;
  }
  return OkStatus();
}

}  // namespace

Result<PartCodecs> PartCodecsOf(const CheckedNamespace& ns) {
  const Recipe& recipe = ns.recipe;
  PartCodecs codecs{.pushed = IdOf(recipe.CodecOf(TierKind::kHost)),
                    .on_disk = IdOf(recipe.CodecOf(TierKind::kDisk)),
                    .selected = recipe.selection.has_value()};
  if (!ns.spec.layout.IsNative()) {
    if (recipe.IsLadder() || codecs.selected || codecs.pushed != format::Codec::kRaw) {
      return InvalidArgument("field 'recipe': got '{}', expected raw in an opaque layout",
                             ns.spec.recipe);
    }
    return PartCodecs{format::Codec::kOpaque, format::Codec::kOpaque};
  }
  if (recipe.IsLadder() && recipe.rungs.front().tier == TierKind::kDevice) {
    return Errorf(StatusCode::kUnimplemented,
                  "field 'recipe': got the ladder '{}', expected rungs only for host and disk: the "
                  "device tier copies what the host tier has",
                  ns.spec.recipe);
  }
  if (recipe.IsLadder() && !codecs.IsLadder()) {
    return InvalidArgument(
        "field 'recipe': got the ladder '{}', expected rungs with different codecs: parts name "
        "their codec, not its parameters",
        ns.spec.recipe);
  }
  for (const RecipeRung& rung : recipe.rungs) {
    codecs.rungs.push_back(rung.codec.Make());
    CAIRN_CHECK(codecs.rungs.back() != nullptr);  // The codecs of a parsed recipe exist.
  }
  const bool raw = !recipe.IsLadder() && !codecs.selected && codecs.pushed == format::Codec::kRaw;
  if (!raw) CAIRN_RETURN_IF_ERROR(CheckLayout(ns, codecs));
  return codecs;
}

}  // namespace cairn
