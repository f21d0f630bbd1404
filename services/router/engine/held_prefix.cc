#include "services/router/engine/held_prefix.h"

#include <algorithm>
#include <utility>

namespace cairn::router {
namespace {

// The longest prefix that the worker's own node holds, or that was sent to the worker if its node
// tells nothing; the rest of what any node holds comes from there.
HeldTokens HeldBy(const RegisteredWorker& worker, const HeldPrefix& held) {
  const std::string& node = worker.report->cache_node_id;
  const Holder* own = nullptr;
  for (const Holder& holder : held.holders) {
    const bool is_own =
        holder.approximate ? holder.id == worker.address : !node.empty() && holder.id == node;
    if (is_own && (own == nullptr || holder.blocks > own->blocks)) own = &holder;
  }
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

// Numbers of pairs of a cache node and a namespace, from 1 on.
class Sites {
 public:
  // 0: the worker has no node now, or no namespace.
  uint32_t Of(const RegisteredWorker& worker) {
    const std::string& node = worker.report->cache_node_id;
    if (node.empty() || !worker.info->fingerprint || worker.info->block_tokens == 0) return 0;
    const auto next = static_cast<uint32_t>(numbers_.size() + 1);
    return numbers_.try_emplace({node, *worker.info->fingerprint}, next).first->second;
  }

 private:
  std::map<std::pair<std::string, Digest>, uint32_t> numbers_;
};

}  // namespace

const std::vector<BlockKey>& PromptKeys::Of(const WorkerInfo& info) {
  static const std::vector<BlockKey> kNone;
  if (!info.fingerprint || info.block_tokens == 0) return kNone;
  auto [it, added] = keys_.try_emplace({*info.fingerprint, info.block_tokens});
  if (added) it->second = BlockKeyChain(*info.fingerprint).Keys(tokens_, info.block_tokens);
  return it->second;
}

std::vector<Offer> MakeOffers(std::span<const RegisteredWorker> workers, bool pairing,
                              PromptKeys* keys, PrefixIndex* index) {
  std::map<Digest, HeldPrefix> held;
  Sites sites;
  std::vector<Offer> offers;
  for (const RegisteredWorker& worker : workers) {
    Offer& offer = offers.emplace_back();
    offer.worker = worker.address;
    offer.usable = worker.answers();
    offer.reason = worker.reason;
    if (worker.condition != WorkerCondition::kReady) continue;
    if (pairing) offer.site = sites.Of(worker);
    offer.block_tokens = worker.info->block_tokens;
    offer.prefills = worker.only_prefills();
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
