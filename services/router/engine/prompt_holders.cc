#include "services/router/engine/prompt_holders.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "services/router/engine/check_request.h"
#include "services/router/engine/held_prefix.h"

namespace cairn::router {
namespace {

PromptHolder HolderOf(std::string id, const Holder& held, uint32_t block_tokens) {
  PromptHolder holder;
  holder.id = std::move(id);
  holder.tokens = held.blocks * block_tokens;
  if (held.approximate) {
    holder.device_tokens = holder.tokens;
  } else {
    holder.device_tokens = held.tier_blocks[TierKind::kDevice] * block_tokens;
    holder.host_tokens = held.tier_blocks[TierKind::kHost] * block_tokens;
    holder.disk_tokens = held.tier_blocks[TierKind::kDisk] * block_tokens;
  }
  return holder;
}

// An engine has those of its own blocks of tokens, if anything is known of these.
bool HasKeys(const RegisteredWorker& worker) {
  return worker.info != nullptr && (worker.info->engine || worker.info->fingerprint);
}

std::optional<GenerateError> CheckBlockTokens(std::span<const RegisteredWorker> workers,
                                              uint32_t wanted) {
  std::set<uint32_t> known;
  for (const RegisteredWorker& worker : workers) {
    if (HasKeys(worker)) known.insert(worker.info->block_tokens);
  }
  if (known.contains(wanted)) return std::nullopt;
  if (known.empty()) {
    GenerateError error;
    error.status = Errorf(StatusCode::kUnavailable, "no worker has told yet what its cache holds");
    return error;
  }
  std::string sizes;
  for (const uint32_t size : known) sizes += fmt::format("{}{}", sizes.empty() ? "" : " or ", size);
  return FieldError("block_size", fmt::format("got {}, expected {}, the workers' own "
                                              "(of engines the setting engines.block_tokens)",
                                              wanted, sizes));
}

// Whether a worker or a node has this name, also if it holds nothing now.
bool IsKnown(const std::string& holder, std::span<const RegisteredWorker> workers,
             const PrefixIndex& index) {
  return index.KnowsNode(holder) ||
         std::ranges::any_of(workers, [&](const RegisteredWorker& worker) {
           return worker.address == holder ||
                  (worker.report != nullptr && worker.report->cache_node_id == holder);
         });
}

}  // namespace

std::variant<std::vector<PromptHolder>, GenerateError> FindHolders(
    std::span<const RegisteredWorker> workers, const HoldersQuery& query, PrefixIndex* index) {
  if (auto error = CheckBlockTokens(workers, query.block_tokens)) return *std::move(error);
  if (!query.holder.empty() && !IsKnown(query.holder, workers, *index)) {
    return FieldError(
        "instance_id",
        fmt::format("got '{}', expected a worker's address as the setting workers has "
                    "it, or the id of a cache node of theirs",
                    query.holder));
  }
  const auto* const tokens = std::get_if<std::vector<model::TokenId>>(&query.prompt);
  PromptKeys derived(tokens == nullptr ? std::span<const model::TokenId>() : *tokens,
                     MakeEngineNamespace(EngineKeys::kTokens, query.block_tokens));
  std::map<Digest, HeldPrefix> by_namespace;
  std::vector<PromptHolder> found;
  for (const RegisteredWorker& worker : workers) {
    if (!HasKeys(worker) || worker.info->block_tokens != query.block_tokens ||
        !Serves(*worker.info, query.model)) {
      continue;
    }
    const auto [held, added] = by_namespace.try_emplace(derived.SpaceOf(*worker.info)->fingerprint);
    if (added) {
      held->second = index->LookupTiers(
          held->first, tokens == nullptr ? std::get<std::vector<BlockKey>>(query.prompt)
                                         : derived.Of(*worker.info));
    }
    const bool wanted = query.holder.empty() ? worker.condition == WorkerCondition::kReady
                                             : worker.address == query.holder;
    if (!wanted || worker.report == nullptr) continue;
    const Holder* const own = OwnHolder(worker, held->second);
    if (own != nullptr) found.push_back(HolderOf(worker.address, *own, query.block_tokens));
  }
  // Not a worker, so it may be a node.
  if (found.empty() && !query.holder.empty()) {
    for (const auto& [fingerprint, held] : by_namespace) {
      for (const Holder& holder : held.holders) {
        if (holder.approximate || holder.id != query.holder) continue;
        found.push_back(HolderOf(holder.id, holder, query.block_tokens));
      }
    }
  }
  std::ranges::sort(found, [](const PromptHolder& a, const PromptHolder& b) {
    return std::tie(b.tokens, a.id) < std::tie(a.tokens, b.id);
  });
  return found;
}

}  // namespace cairn::router
