#include "services/worker/methods/selections/selection_stage.h"

#include <optional>

#include "kernels/selections/registry.h"
#include "services/worker/engine/methods.h"
#include "services/worker/methods/selections/head_calibration.h"
#include "services/worker/methods/selections/selected_prompt.h"

namespace cairn::worker {

Result<std::unique_ptr<const selections::Selection>> SelectionOf(const Recipe& recipe,
                                                                 const NamespaceInputs& inputs) {
  if (!recipe.selection) return std::unique_ptr<const selections::Selection>();
  const auto& [info, values] = *recipe.selection;
  std::optional<selections::HeadScores> heads;
  if (const auto digest = selections::CalibrationOf(*info, values)) {
    CAIRN_ASSIGN_OR_RETURN(heads,
                           LoadHeadScores(inputs.calibration, {.digest = *digest,
                                                               .method = info->name,
                                                               .weights = inputs.weights,
                                                               .layers = inputs.kv.layers,
                                                               .kv_heads = inputs.kv.kv_heads}));
  }
  std::unique_ptr<const selections::Selection> made =
      selections::MakeSelection(info->name, values, heads ? &*heads : nullptr);
  if (made == nullptr) {
    return InvalidArgument("option 'recipe': the selection of '{}' cannot be made", inputs.recipe);
  }
  return made;
}

std::unique_ptr<PromptWays> SelectionStage::NewWays(const MethodServices& services) const {
  return std::make_unique<SelectedPrompts>(services.transformer, services.model, services.pool,
                                           services.clock, *selection_, services.session,
                                           services.push, services.make_room);
}

}  // namespace cairn::worker
