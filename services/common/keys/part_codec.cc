#include "services/common/keys/part_codec.h"

#include "services/common/recipe/recipe.h"

namespace cairn {

Result<format::Codec> PartCodec(const NamespaceSpec& spec) {
  CAIRN_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(spec.recipe));
  if (recipe.IsLadder()) {
    return Errorf(StatusCode::kUnimplemented,
                  "field 'recipe': got the ladder '{}', expected one codec: blocks are not encoded "
                  "again when they move to another tier",
                  spec.recipe);
  }
  const auto codec = static_cast<format::Codec>(recipe.rungs.front().codec.info->id);
  if (spec.layout.IsNative()) return codec;
  if (codec != format::Codec::kRaw) {
    return InvalidArgument("field 'recipe': got '{}', expected raw in an opaque layout",
                           spec.recipe);
  }
  return format::Codec::kOpaque;
}

}  // namespace cairn
