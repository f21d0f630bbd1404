#include "clients/pages/block_codec.h"

#include <memory>
#include <optional>

#include "common/recipe/recipe.h"
#include "kernels/codecs/slice_forms.h"

namespace cairn::pages {

using kernels::SliceForm;
using kernels::SliceTask;

Result<BlockCodec> BlockCodec::Create(std::string_view codec, const BlockShape& shape) {
  const auto refuse = [&](std::string_view expected) {
    return InvalidArgument("field 'codec': got '{}', expected {}", codec, expected);
  };
  if (shape.layers == 0 || shape.heads == 0 || shape.tokens == 0) {
    return InvalidArgument("field 'shape': got {} layers, {} heads, {} tokens, expected 1 or more",
                           shape.layers, shape.heads, shape.tokens);
  }
  const auto recipe = ParseRecipe(codec);
  if (!recipe.ok()) return InvalidArgument("field 'codec': {}", Message(recipe.status()));
  if (recipe->selection || recipe->IsLadder()) {
    return refuse("one codec, without a selection of rows and for all tiers");
  }
  const RecipeCodec& chosen = recipe->rungs.front().codec;
  if (!chosen.info->lossy) return refuse("a codec that makes blocks smaller, or no such setting");
  std::optional<SliceForm> form = codecs::SliceFormOf(chosen.info->name, chosen.values);
  if (!form || kernels::IsCacheGen(*form)) {
    return refuse("a codec whose blocks have one size, which a buffer can be made for");
  }
  const codecs::SliceShape slice = {.tokens = shape.tokens,
                                    .k_heads = shape.heads,
                                    .k_dim = shape.k_dim,
                                    .v_heads = shape.heads,
                                    .v_dim = shape.v_dim};
  if (const std::string why = chosen.Make()->Supports(slice, {}); !why.empty()) {
    return InvalidArgument("field 'codec': '{}' cannot store the model's KV: {}", codec, why);
  }
  form->k.heads = form->v.heads = static_cast<int32_t>(shape.heads);
  form->k.dim = static_cast<int32_t>(shape.k_dim);
  form->v.dim = static_cast<int32_t>(shape.v_dim);
  return BlockCodec(chosen.Canonical(), shape, *form);
}

SliceTask BlockCodec::Task(uint32_t layer, uint64_t first_position) const {
  SliceTask task;
  task.first_position = static_cast<int64_t>(first_position);
  task.tokens = static_cast<int32_t>(shape_.tokens);
  task.layer = static_cast<int32_t>(layer);
  task.bytes = static_cast<uint64_t>(kernels::SliceBytes(form_, task));
  return task;
}

uint64_t BlockCodec::SliceBytes(uint64_t first_position) const {
  return Task(0, first_position).bytes;
}

}  // namespace cairn::pages
