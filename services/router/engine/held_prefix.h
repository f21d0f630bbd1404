#pragma once
// The holders of a prompt, and how much each holds, as offers to the dispatcher.

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
  explicit PromptKeys(std::span<const model::TokenId> tokens,
                      std::optional<EngineNamespace> space = {})
      : tokens_(tokens), space_(space) {}
  // nullopt: the worker has none.
  std::optional<EngineNamespace> SpaceOf(const WorkerInfo& info) const;
  // The keys of the prompt's full blocks. Empty: the worker has no namespace.
  const std::vector<BlockKey>& Of(const WorkerInfo& info);

 private:
  const std::span<const model::TokenId> tokens_;
  const std::optional<EngineNamespace> space_;
  std::map<std::pair<Digest, uint32_t>, std::vector<BlockKey>> keys_;
};

// The one that tells what the worker has: its own node, or what was sent to the worker if its node
// tells nothing. nullptr: neither holds anything. REQUIRES: the worker has a report.
const Holder* OwnHolder(const RegisteredWorker& worker, const HeldPrefix& held);

// The worker may be asked for this model. The engine decides if none is named, or if it lists none;
// Cairn's workers all have the router's model.
bool Serves(const WorkerInfo& info, std::string_view model);

// Most tokens of prompt and answer that the worker takes for this model. 0: not known.
uint32_t ContextOf(const WorkerInfo& info, std::string_view model);

// The longest context of the workers that can answer. 0: not known of one of them, or there is
// none.
uint32_t LongestContext(std::span<const RegisteredWorker> workers, std::string_view model);
// The tokens of a prompt that count in a decision: no worker computes more than its context.
uint32_t CountedTokens(std::span<const RegisteredWorker> workers, std::string_view model,
                       size_t tokens);

// The request that a decision is about.
struct Wanted {
  std::string_view model = {};
  // The exact number of the prompt's tokens. 0: not known, because text stands for them.
  size_t exact_tokens = 0;
};
// The worker has room for the prompt, as far as is known. An engine says itself whether there is
// room for an answer; Cairn's workers need room for one token.
bool Fits(const WorkerInfo& info, const Wanted& wanted);

// One offer for each worker, in their order. Those that are ready, serve the model and have room
// for the prompt are usable, but workers that only compute prompts for others: these may do so, if
// `pairing`.
std::vector<Offer> MakeOffers(std::span<const RegisteredWorker> workers, const Wanted& wanted,
                              bool pairing, PromptKeys* keys, PrefixIndex* index);

}  // namespace cairn::router
