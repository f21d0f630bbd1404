#include "services/common/keys/part_codec.h"

#include "services/common/recipe/recipe.h"

namespace cairn {
namespace {

format::Codec IdOf(const RecipeCodec& codec) { return static_cast<format::Codec>(codec.info->id); }

}  // namespace

Result<PartCodecs> PartCodecsOf(const NamespaceSpec& spec) {
  CAIRN_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(spec.recipe));
  const PartCodecs codecs{IdOf(recipe.CodecOf(RecipeTier::kHost)),
                          IdOf(recipe.CodecOf(RecipeTier::kDisk))};
  if (!spec.layout.IsNative()) {
    if (recipe.IsLadder() || codecs.pushed != format::Codec::kRaw) {
      return InvalidArgument("field 'recipe': got '{}', expected raw in an opaque layout",
                             spec.recipe);
    }
    return PartCodecs{format::Codec::kOpaque, format::Codec::kOpaque};
  }
  if (!recipe.IsLadder()) return codecs;
  if (recipe.rungs.front().tier == RecipeTier::kDevice) {
    return Errorf(StatusCode::kUnimplemented,
                  "field 'recipe': got the ladder '{}', expected rungs for host and disk alone: "
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
