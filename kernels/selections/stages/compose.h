#pragma once
// A selection made of stages: scorer, budgets, picker.

#include <cstdint>
#include <memory>
#include <string_view>

#include "kernels/selections/selection.h"
#include "kernels/selections/stages/budgets.h"
#include "kernels/selections/stages/pickers.h"
#include "kernels/selections/stages/scorers.h"

namespace cairn::selections {

struct Stages {
  std::string_view name;  // A string that lives at least as long.
  int64_t keep = 0;       // In units of 1 / kKeepUnits.
  bool sink = false;      // Row 0 stays when the sequence begins with it.
  ScorerPtr scorer;
  LayerBudget layers = EvenLayers();
  HeadSplit heads = EvenHeads();
  PickerPtr picker = TokenPicker();
  // Layer l keeps the rows of layer l - l % reuse, and is not scored unless they are the same. Only
  // where budgets do not depend on scores.
  int32_t reuse = 1;
};

// Edge rules: a segment that is no longer than its protected rows, or whose budget is all of it, is
// kept whole; budgets below the number of protected rows are raised to it.
std::unique_ptr<Selection> Compose(Stages stages, const kernels::SelectionKernels& kernels);

}  // namespace cairn::selections
