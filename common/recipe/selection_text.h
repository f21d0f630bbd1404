#pragma once
// The part of a recipe that names a selection of tokens: "streaming:keep=0.4,sinks=4".

#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"
#include "kernels/selections/registry.h"

namespace cairn {

// A selection with a value for each of its parameters. It has only names and numbers. Code that
// runs selections makes one with selections::MakeSelection(info->name, values, ...).
struct RecipeSelection {
  const selections::SelectionInfo* info = nullptr;  // Never null in a parsed recipe.
  std::vector<int64_t> values;                      // As selections::ParameterKind counts them.

  bool operator==(const RecipeSelection&) const = default;
  // Every parameter, with each number in its shortest form: "streaming:keep=0.4,sinks=4". A
  // calibration has 16 digits: "duo:keep=0.4,heads=00112233aabbccdd,sinks=4,recent=128".
  std::string Canonical() const;
};

// A preset's name stands for its selection, with the preset's values for what is not given; the
// canonical form has the selection's name and all values.
// INVALID_ARGUMENT, which names the selection or parameter, the value, and the names or values that
// are legal.
Result<RecipeSelection> ParseSelection(std::string_view text);

}  // namespace cairn
