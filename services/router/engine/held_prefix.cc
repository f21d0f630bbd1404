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
HeldTokens HeldBy(const RegisteredWorker& worker, const HeldPrefix& held, uint32_t block) {
  const std::string& node = worker.report->cache_node_id;
  const Holder* const own = OwnHolder(worker, held);
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

uint32_t ContextOf(const WorkerInfo& info, std::string_view model) {
  if (!info.engine) return info.context_tokens;
  uint32_t most = 0;
  for (const EngineModel& one : info.models) {
    if (!model.empty() && one.id != model) continue;
    if (one.context_tokens == 0) return 0;
    most = std::max(most, one.context_tokens);
  }
  return most;
}

uint32_t LongestContext(std::span<const RegisteredWorker> workers, std::string_view model) {
  uint32_t longest = 0;
  for (const RegisteredWorker& worker : workers) {
    if (!worker.answers() || !Serves(*worker.info, model)) continue;
    const uint32_t context = ContextOf(*worker.info, model);
    if (context == 0) return 0;
    longest = std::max(longest, context);
  }
  return longest;
}

uint32_t CountedTokens(std::span<const RegisteredWorker> workers, std::string_view model,
                       size_t tokens) {
  const size_t context = LongestContext(workers, model);
  return static_cast<uint32_t>(context == 0 ? tokens : std::min(tokens, context));
}

bool Fits(const WorkerInfo& info, const Wanted& wanted) {
  const size_t context = ContextOf(info, wanted.model);
  if (context == 0 || wanted.exact_tokens == 0) return true;
  return info.engine ? wanted.exact_tokens <= context : wanted.exact_tokens < context;
}

std::vector<Offer> MakeOffers(std::span<const RegisteredWorker> workers, const Wanted& wanted,
                              bool pairing, PromptKeys* keys, PrefixIndex* index) {
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
    if (!Serves(*worker.info, wanted.model)) {
      offer.usable = false;
      offer.reason = "it does not serve this model";
      continue;
    }
    if (!Fits(*worker.info, wanted)) {
      offer.usable = false;
      offer.reason = fmt::format("its context of {} tokens is too small for a prompt of {}",
                                 ContextOf(*worker.info, wanted.model), wanted.exact_tokens);
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
