// Any text as a recipe: an error, or a recipe whose canonical form means the same.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/recipe/recipe.h"
#include "tests/fuzz/input.h"

CAIRN_FUZZ_ENTRY(recipe)(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto recipe = cairn::ParseRecipe(text);
  if (!recipe.ok()) return 0;
  const auto again = cairn::ParseRecipe(recipe->Canonical());
  if (!again.ok() || !(*again == *recipe) || again->Canonical() != recipe->Canonical())
    std::abort();
  for (const auto& rung : recipe->rungs) {
    if (rung.codec.Make() == nullptr) std::abort();
  }
  return 0;
}
