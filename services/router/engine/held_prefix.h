#pragma once
// Who holds how much of a prompt, as offers to the dispatcher.

#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "services/router/index/prefix_index.h"
#include "services/router/policy/dispatcher.h"
#include "services/router/registry/engine_namespace.h"
#include "services/router/registry/worker_registry.h"

namespace cairn::router {

// The keys of one prompt in the namespaces of the workers, each derived once. One thread at a time.
class PromptKeys {
 public:
  // `space`: where the prompt's keys are, for workers that name no namespace of their own. `tokens`
  // must outlive it.
  explicit PromptKeys(std::span<const worker::TokenId> tokens,
                      std::optional<EngineNamespace> space = {})
      : tokens_(tokens), space_(space) {}
  // nullopt: the worker has none.
  std::optional<EngineNamespace> SpaceOf(const WorkerInfo& info) const;
  // Of the prompt's full blocks. Empty: the worker has no namespace.
  const std::vector<BlockKey>& Of(const WorkerInfo& info);

 private:
  const std::span<const worker::TokenId> tokens_;
  const std::optional<EngineNamespace> space_;
  std::map<std::pair<Digest, uint32_t>, std::vector<BlockKey>> keys_;
};

// The worker may be asked for this model. The engine decides if none is named, or if it lists none;
// Cairn's workers all have the router's model.
bool Serves(const WorkerInfo& info, std::string_view model);

// One offer for each worker, in their order, all of them usable if they are ready and serve the
// model.
std::vector<Offer> MakeOffers(std::span<const RegisteredWorker> workers, std::string_view model,
                              PromptKeys* keys, PrefixIndex* index);

}  // namespace cairn::router
