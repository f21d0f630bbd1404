#include "services/router/engine/held_prefix.h"

#include <algorithm>
#include <utility>

namespace cairn::router {

const Holder* OwnHolder(const RegisteredWorker& worker, const HeldPrefix& held) {
  const std::string& node = worker.report->cache_node_id;
  const Holder* own = nullptr;
  for (const Holder& holder : held.holders) {
    const bool is_own =
        holder.approximate ? holder.id == worker.address : !node.empty() && holder.id == node;
    if (is_own && (own == nullptr || holder.blocks > own->blocks)) own = &holder;
  }
  return own;
}

namespace {

// The longest prefix that the worker's own node holds, or that was sent to the worker if its node
// tells nothing; the rest of what any node holds comes from there.
HeldTokens HeldBy(const RegisteredWorker& worker, const HeldPrefix& held) {
  const std::string& node = worker.report->cache_node_id;
  const Holder* const own = OwnHolder(worker, held);
  const uint32_t block = worker.info->block_tokens;
  HeldTokens tokens;
  uint32_t own_blocks = 0;
  if (own != nullptr) {
    own_blocks = own->blocks;
    tokens.memory = own->memory_blocks * block;
    tokens.disk = (own->blocks - own->memory_blocks) * block;
  }
  // A worker without a node can get nothing.
  if (!node.empty() && held.any_blocks > own_blocks) {
    tokens.elsewhere = (held.any_blocks - own_blocks) * block;
  }
  return tokens;
}

}  // namespace

const std::vector<BlockKey>& PromptKeys::Of(const WorkerInfo& info) {
  static const std::vector<BlockKey> kNone;
  if (!info.fingerprint || info.block_tokens == 0) return kNone;
  auto [it, added] = keys_.try_emplace({*info.fingerprint, info.block_tokens});
  if (added) it->second = BlockKeyChain(*info.fingerprint).Keys(tokens_, info.block_tokens);
  return it->second;
}

std::vector<Offer> MakeOffers(std::span<const RegisteredWorker> workers, PromptKeys* keys,
                              PrefixIndex* index) {
  std::map<Digest, HeldPrefix> held;
  std::vector<Offer> offers;
  for (const RegisteredWorker& worker : workers) {
    Offer& offer = offers.emplace_back();
    offer.worker = worker.address;
    offer.usable = worker.condition == WorkerCondition::kReady;
    offer.reason = worker.reason;
    if (!offer.usable) continue;
    const std::vector<BlockKey>& prompt = keys->Of(*worker.info);
    if (prompt.empty()) continue;
    auto [it, added] = held.try_emplace(*worker.info->fingerprint);
    if (added) it->second = index->Lookup(*worker.info->fingerprint, prompt);
    offer.held = HeldBy(worker, it->second);
  }
  return offers;
}

}  // namespace cairn::router
