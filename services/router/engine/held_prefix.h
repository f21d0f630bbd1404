#pragma once
// Who holds how much of a prompt, as offers to the dispatcher.

#include <map>
#include <span>
#include <vector>

#include "services/router/index/prefix_index.h"
#include "services/router/policy/dispatcher.h"
#include "services/router/registry/worker_registry.h"

namespace cairn::router {

// The keys of one prompt in the namespaces of the workers, each derived once. One thread at a time.
class PromptKeys {
 public:
  explicit PromptKeys(std::span<const worker::TokenId> tokens) : tokens_(tokens) {}
  // Of the prompt's full blocks. Empty: the worker has no namespace.
  const std::vector<BlockKey>& Of(const WorkerInfo& info);

 private:
  const std::span<const worker::TokenId> tokens_;
  std::map<std::pair<Digest, uint32_t>, std::vector<BlockKey>> keys_;
};

// One offer for each worker, in their order. Those that are ready are usable, but workers that only
// compute prompts for others: these may do so, if `pairing`.
std::vector<Offer> MakeOffers(std::span<const RegisteredWorker> workers, bool pairing,
                              PromptKeys* keys, PrefixIndex* index);

}  // namespace cairn::router
