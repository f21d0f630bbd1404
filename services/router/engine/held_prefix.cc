#include "services/router/engine/held_prefix.h"

#include <algorithm>
#include <utility>

namespace cairn::router {
namespace {

// The longest prefix that the worker's own node holds, or that was sent to the worker if its node
// tells nothing; the rest of what any node holds comes from there.
HeldTokens HeldBy(const RegisteredWorker& worker, const HeldPrefix& held, uint32_t block) {
  const std::string& node = worker.report->cache_node_id;
  const Holder* own = nullptr;
  for (const Holder& holder : held.holders) {
    const bool is_own =
        holder.approximate ? holder.id == worker.address : !node.empty() && holder.id == node;
    if (is_own && (own == nullptr || holder.blocks > own->blocks)) own = &holder;
  }
  HeldTokens tokens;
  uint32_t own_blocks = 0;
  if (own != nullptr) {
    own_blocks = own->blocks;
    tokens.memory = own->memory_blocks * block;
    tokens.disk = (own->blocks - own->memory_blocks) * block;
  }
  // A worker without a node can get nothing, and an engine gets nothing of what others hold.
  if (!node.empty() && !worker.info->engine && held.any_blocks > own_blocks) {
    tokens.elsewhere = (held.any_blocks - own_blocks) * block;
  }
  return tokens;
}

}  // namespace

std::optional<EngineNamespace> PromptKeys::SpaceOf(const WorkerInfo& info) const {
  if (info.engine) return space_;
  if (!info.fingerprint || info.block_tokens == 0) return std::nullopt;
  return EngineNamespace{.fingerprint = *info.fingerprint, .block_tokens = info.block_tokens};
}

const std::vector<BlockKey>& PromptKeys::Of(const WorkerInfo& info) {
  static const std::vector<BlockKey> kNone;
  const std::optional<EngineNamespace> space = SpaceOf(info);
  if (!space) return kNone;
  auto [it, added] = keys_.try_emplace({space->fingerprint, space->block_tokens});
  if (added) it->second = BlockKeyChain(space->fingerprint).Keys(tokens_, space->block_tokens);
  return it->second;
}

bool Serves(const WorkerInfo& info, std::string_view model) {
  if (!info.engine || model.empty() || info.models.empty()) return true;
  return std::ranges::find(info.models, model, &EngineModel::id) != info.models.end();
}

std::vector<Offer> MakeOffers(std::span<const RegisteredWorker> workers, std::string_view model,
                              PromptKeys* keys, PrefixIndex* index) {
  std::map<Digest, HeldPrefix> held;
  std::vector<Offer> offers;
  for (const RegisteredWorker& worker : workers) {
    Offer& offer = offers.emplace_back();
    offer.worker = worker.address;
    offer.usable = worker.condition == WorkerCondition::kReady;
    offer.reason = worker.reason;
    if (!offer.usable) continue;
    if (!Serves(*worker.info, model)) {
      offer.usable = false;
      offer.reason = "it does not serve this model";
      continue;
    }
    const std::vector<BlockKey>& prompt = keys->Of(*worker.info);
    if (prompt.empty()) continue;
    const EngineNamespace space = *keys->SpaceOf(*worker.info);
    auto [it, added] = held.try_emplace(space.fingerprint);
    if (added) it->second = index->Lookup(space.fingerprint, prompt);
    offer.held = HeldBy(worker, it->second, space.block_tokens);
  }
  return offers;
}

}  // namespace cairn::router
