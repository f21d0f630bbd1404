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

// The one that tells what the worker has: its own node, or what was sent to the worker if its node
// tells nothing. nullptr: neither holds anything. REQUIRES: the worker has a report.
const Holder* OwnHolder(const RegisteredWorker& worker, const HeldPrefix& held);

// One offer for each worker, in their order, all of them usable if they are ready.
std::vector<Offer> MakeOffers(std::span<const RegisteredWorker> workers, PromptKeys* keys,
                              PrefixIndex* index);

}  // namespace cairn::router
