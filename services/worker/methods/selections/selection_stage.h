#pragma once
// A selection of tokens as the stage of a recipe.

#include <memory>
#include <utility>

#include "cairn/common/status.h"
#include "common/recipe/recipe.h"
#include "kernels/selections/selection.h"
#include "services/worker/engine/recipe_stage.h"
#include "services/worker/session/worker_namespace.h"

namespace cairn::worker {

// The selection of a recipe, which is the value of `inputs.recipe`. Null: it keeps everything.
// FAILED_PRECONDITION: LoadHeadScores refuses the calibration.
Result<std::unique_ptr<const selections::Selection>> SelectionOf(const Recipe& recipe,
                                                                 const NamespaceInputs& inputs);

// Immutable.
class SelectionStage final : public RecipeStage {
 public:
  explicit SelectionStage(std::unique_ptr<const selections::Selection> selection)
      : selection_(std::move(selection)) {}

  const selections::Selection& selection() const { return *selection_; }
  std::unique_ptr<PromptWays> NewWays(const MethodServices& services) const override;

 private:
  const std::unique_ptr<const selections::Selection> selection_;
};

}  // namespace cairn::worker
