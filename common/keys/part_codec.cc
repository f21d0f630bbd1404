#include "common/keys/part_codec.h"

#include "common/recipe/recipe.h"

namespace cairn {
namespace {

format::Codec IdOf(const RecipeCodec& codec) { return static_cast<format::Codec>(codec.info->id); }

// Every layer has no planes, or keys and values whose heads choose their rows alike.
Status CheckSelectable(const NamespaceSpec& spec) {
  for (uint32_t layer = 0; layer < spec.layout.Layers(); ++layer) {
    const std::span<const Plane> planes = spec.layout.PlanesOf(layer);
    if (planes.empty()) continue;
    const bool keys_and_values =
        planes.size() == 2 && planes[0].name == "k" && planes[1].name == "v";
    const bool fits = keys_and_values && planes[0].dtype == DType::kF16 &&
                      planes[1].dtype == DType::kF16 && planes[0].heads == planes[1].heads &&
                      planes[0].heads == spec.layout.KvHeads();
    if (!fits) {
      return InvalidArgument(
          "field 'recipe': got the selection '{}', expected planes 'k' and 'v' of f16 with {} "
          "heads "
          "each; layer {} has others",
          spec.recipe, spec.layout.KvHeads(), layer);
    }
  }
  return OkStatus();
}

}  // namespace

Result<PartCodecs> PartCodecsOf(const NamespaceSpec& spec) {
  CAIRN_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(spec.recipe));
  const PartCodecs codecs{IdOf(recipe.CodecOf(TierKind::kHost)),
                          IdOf(recipe.CodecOf(TierKind::kDisk)), recipe.selection.has_value()};
  if (!spec.layout.IsNative()) {
    if (recipe.IsLadder() || codecs.selected || codecs.pushed != format::Codec::kRaw) {
      return InvalidArgument("field 'recipe': got '{}', expected raw in an opaque layout",
                             spec.recipe);
    }
    return PartCodecs{format::Codec::kOpaque, format::Codec::kOpaque};
  }
  if (codecs.selected) CAIRN_RETURN_IF_ERROR(CheckSelectable(spec));
  if (!recipe.IsLadder()) return codecs;
  if (recipe.rungs.front().tier == TierKind::kDevice) {
    return Errorf(StatusCode::kUnimplemented,
                  "field 'recipe': got the ladder '{}', expected rungs only for host and disk: "
                  "there is no device tier",
                  spec.recipe);
  }
  if (!codecs.IsLadder()) {
    return InvalidArgument(
        "field 'recipe': got the ladder '{}', expected rungs with different codecs: parts name "
        "their codec, not its parameters",
        spec.recipe);
  }
  return codecs;
}

}  // namespace cairn
