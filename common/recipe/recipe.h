#pragma once
// Recipes: how a namespace's KV is stored. A recipe is part of the namespace's fingerprint, in its
// canonical form, so equal recipes name equal blocks.
//
//   recipe    = [selection "+"] codec          in all tiers
//             | tier "=" codec (">" tier "=" codec)+   a ladder: re-encoded when it moves down
//   selection = name ":" parameter "=" value ("," parameter "=" value)*
//   value     = decimal | 16 hexadecimal digits, where the parameter names a calibration
//   codec     = name [":" parameter "=" integer ("," parameter "=" integer)*]
//   tier      = "device" | "host" | "disk"     in this order
//
//   int8    int8:group=64    host=int8>disk=turbo:bits=4    streaming:keep=0.4+turbo:bits=4
//
// The name of a selection may be that of a preset: chunkkv-paper:keep=0.4 is chunkkv with the
// paper's settings. Canonical forms have the selection's name.
//
// Codecs and selections, their parameters and values: kernels/codecs/registry.h,
// kernels/selections/registry.h, docs/operate/recipes.md, docs/methods/selections.md.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"
#include "cairn/common/tier_kind.h"
#include "common/recipe/selection_text.h"
#include "kernels/codecs/registry.h"

namespace cairn {

// One codec with a value for each of its parameters.
struct RecipeCodec {
  const codecs::CodecInfo* info = nullptr;  // Never null in a parsed recipe.
  std::vector<int64_t> values;

  bool operator==(const RecipeCodec&) const = default;
  // Every parameter, except those that only follow another one: "turbo:bits=4,sink=1".
  std::string Canonical() const;
  std::unique_ptr<codecs::Codec> Make() const { return codecs::MakeCodec(info->name, values); }
};

struct RecipeRung {
  std::optional<TierKind> tier = std::nullopt;  // nullopt: all tiers.
  RecipeCodec codec;
  bool operator==(const RecipeRung&) const = default;
};

struct Recipe {
  // Which rows of tokens are stored. nullopt: all rows. A recipe with a ladder never has one.
  std::optional<RecipeSelection> selection = std::nullopt;
  // One rung for all tiers, or two or more in the order of their tiers.
  std::vector<RecipeRung> rungs;

  bool operator==(const Recipe&) const = default;
  std::string Canonical() const;
  bool IsLadder() const { return rungs.size() > 1; }
  // True when the selection or any rung is lossy. KV that was computed over such KV has its own
  // lineage.
  bool Lossy() const;
  // The rung for blocks in a tier: the last rung that is not below the tier, or the first rung if
  // all are below it.
  const RecipeCodec& CodecOf(TierKind tier) const;
};

// INVALID_ARGUMENT, which names the wrong word, its place, and the names or values that are legal.
// UNIMPLEMENTED: a selection in a ladder.
Result<Recipe> ParseRecipe(std::string_view text);

// ParseRecipe(text).Canonical().
Result<std::string> CanonicalRecipe(std::string_view text);

}  // namespace cairn
