// The methods that this worker has: engine/methods.h.

#include <algorithm>
#include <utility>

#include "cairn/kernels/backend.h"
#include "services/worker/engine/methods.h"
#include "services/worker/methods/reading/near_memory.h"
#include "services/worker/methods/reading/policy_reading.h"
#include "services/worker/methods/reading/read_policy.h"
#include "services/worker/methods/selections/selection_publisher.h"
#include "services/worker/methods/selections/selection_stage.h"
#include "services/worker/methods/turned/turned_prompt.h"

namespace cairn::worker::methods {

Status CheckStage(const Recipe& /*recipe*/) { return OkStatus(); }

Result<std::unique_ptr<const RecipeStage>> StageOf(const Recipe& recipe,
                                                   const NamespaceInputs& inputs) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<const selections::Selection> selection,
                         SelectionOf(recipe, inputs));
  std::unique_ptr<const RecipeStage> stage;
  if (selection != nullptr) stage = std::make_unique<const SelectionStage>(std::move(selection));
  return stage;
}

std::unique_ptr<StagePublisher> NewStagePublisher(Transformer& transformer,
                                                  const model::Model& model, PushQueue& push,
                                                  std::span<const PublishedNamespace> published) {
  return std::make_unique<SelectionPublisher>(transformer, model, push, published);
}

std::unique_ptr<PromptWays> NewTurnedPrompts(const MethodServices& services) {
  return std::make_unique<TurnedPrompts>(
      TurnServices{.client = *services.client,
                   .session = *services.session,
                   .codec = *services.codec,
                   .clock = services.clock,
                   .executor = *services.executor,
                   .wakeup = *services.wakeup,
                   .push = *services.own_push,
                   .kernels = *kernels::BestCpuBackend().selections,
                   .kv = services.pool.layout(),
                   .rope_dim = services.model.hp().rope_dim,
                   .rope_base = services.model.hp().rope_base,
                   .match_deadline = services.match_deadline});
}

Status CheckReadPolicy(std::string_view policy) { return ParseReadPolicy(policy).status(); }

Result<NearNeeds> NearNeedsOf(std::string_view policy, const KvLayout& kv, int64_t tokens) {
  CAIRN_ASSIGN_OR_RETURN(const ReadPolicy parsed, ParseReadPolicy(policy));
  CAIRN_RETURN_IF_ERROR(worker::CheckReadPolicy(parsed, kv));
  const int64_t block = kv.block_tokens;
  // Contexts are whole blocks, and what stands behind them lies in the pool.
  CAIRN_ASSIGN_OR_RETURN(const NearMemory all,
                         ShareBudget(parsed, kv, std::max(block, tokens / block * block),
                                     /*own_bytes=*/0, NearBudget()));
  CAIRN_ASSIGN_OR_RETURN(const NearMemory one,
                         ShareBudget(parsed, kv, block, kv.bytes_for(block), NearBudget()));
  return NearNeeds{.most = all.total(), .least = one.total()};
}

Result<std::unique_ptr<const ContextOpener>> NewContextOpener(const ReadingInputs& inputs) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<const ContextOpener> reading,
                         PolicyReading::Create(inputs));
  return reading;
}

}  // namespace cairn::worker::methods
