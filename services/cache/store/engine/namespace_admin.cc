#include "services/cache/store/engine/namespace_admin.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "common/log/log.h"
#include "services/cache/store/block/record.h"
#include "services/cache/store/state/namespace_record.h"

namespace cairn::cache {
namespace {

constexpr size_t kMaxSimilar = 8;

}  // namespace

Result<OpenedNamespace> NamespaceAdmin::Open(const NamespaceSpec& spec, bool strict,
                                             Duration block_life, LifeChange change) {
  if (block_life.count() != 0 &&
      (block_life < kShortestBlockLife || block_life > kLongestBlockLife)) {
    return InvalidArgument("field 'block_life': got {} s, expected 0, or {} to {} s",
                           Seconds(block_life), Seconds(kShortestBlockLife),
                           Seconds(kLongestBlockLife));
  }
  const auto wanted = StoredNamespace::Of(spec);
  CAIRN_RETURN_IF_ERROR(wanted->storage.status());
  NodeContext& context = *s_.context;
  OpenedNamespace opened;
  opened.fingerprint = wanted->fingerprint;

  std::vector<std::weak_ptr<NamespaceState>> similar;
  for (const NamespacePtr& other : Similar(*wanted)) {
    similar.push_back(other);
    auto differences =
        Differences(other->spec, other->storage().recipe, wanted->spec, wanted->storage->recipe);
    // Two values of a field may have the same hash.
    if (differences.size() != 1) continue;
    opened.differs.push_back(
        {std::move(differences[0]), other->blocks.load(std::memory_order_relaxed)});
  }
  if (strict && context.registry.Find(opened.fingerprint) == nullptr && !opened.differs.empty()) {
    const auto& [field, stored, requested] = opened.differs[0].difference;
    return Errorf(StatusCode::kFailedPrecondition,
                  "field '{}': got '{}', but a stored namespace of this tenant that is equal "
                  "otherwise has '{}'",
                  field, requested, stored);
  }
  CAIRN_ASSIGN_OR_RETURN(
      const NamespaceRegistry::Opened added,
      Add(wanted, block_life.count() != 0 ? block_life : context.options.block_life));
  opened.created = added.created;
  if (!added.created && block_life.count() != 0) {
    CAIRN_RETURN_IF_ERROR(ChangeLife(*added.state, block_life, change));
  }
  MutexLock lock(added.state->similar_mu);
  added.state->similar = std::move(similar);
  return opened;
}

Status NamespaceAdmin::ChangeLife(NamespaceState& ns, Duration life, LifeChange change) {
  const auto changes = [&] {
    const Duration now = ns.life();
    if (change == LifeChange::kAny) return life != now;
    return now.count() != 0 && life > now;  // 0: forever.
  };
  if (!changes()) return OkStatus();
  // Records of namespaces are written one after the other.
  MutexLock meta(s_.context->meta_mu);
  {
    NamespaceLock lock(ns, s_.context->tiers);
    // Another opening may have come first.
    if (ns.dropped.load(std::memory_order_relaxed) || !changes()) return OkStatus();
    ns.SetLife(life);
  }
  if (!ns.persisted.load(std::memory_order_relaxed)) return OkStatus();
  return Annotate(RewriteNamespaceRecord(*s_.context, ns, ns.generation, false),
                  "the life of blocks is not recorded on disk");
}

std::vector<NamespacePtr> NamespaceAdmin::Similar(const StoredNamespace& wanted) const {
  std::vector<std::pair<uint64_t, NamespacePtr>> found;  // With its blocks, which may change.
  const auto all = s_.context->registry.All();
  for (const NamespacePtr& other : *all) {
    if (other->spec.tenant != wanted.spec.tenant || other->fingerprint == wanted.fingerprint) {
      continue;
    }
    if (!other->readable().ok()) continue;  // Its blocks would help nobody.
    if (!DifferInOneField(other->storage().fields, wanted.storage->fields)) continue;
    found.emplace_back(other->blocks.load(std::memory_order_relaxed), other);
  }
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first > b.first; });
  if (found.size() > kMaxSimilar) found.resize(kMaxSimilar);
  std::vector<NamespacePtr> similar;
  for (auto& [blocks, ns] : found) similar.push_back(std::move(ns));
  return similar;
}

Result<NamespaceRegistry::Opened> NamespaceAdmin::Add(
    const std::shared_ptr<const StoredNamespace>& wanted, Duration life) {
  NodeContext& context = *s_.context;
  const auto try_to_add = [&]() -> Result<NamespaceRegistry::Opened> {
    // One that is here costs nothing more.
    std::shared_ptr<const MemoryCharge> charge;
    if (context.registry.Find(wanted->fingerprint) == nullptr) {
      CAIRN_ASSIGN_OR_RETURN(
          MemoryCharge taken,
          context.memory.Charge(MemoryItem::kNamespaces, NamespaceState::Cost(*wanted)));
      charge = std::make_shared<const MemoryCharge>(std::move(taken));
    }
    return context.registry.Open(
        wanted->fingerprint, wanted->spec.tenant, [&](uint64_t generation) {
          auto state = std::make_shared<NamespaceState>(
              wanted, generation, context.options.eviction, context.seed, charge);
          MutexLock lock(state->mu);
          state->SetLife(life);
          return state;
        });
  };
  Result<NamespaceRegistry::Opened> added = try_to_add();
  if (added.ok() || added.status().code() != StatusCode::kResourceExhausted) return added;
  for (NamespacePtr& unused : context.registry.Unused(wanted->spec.tenant)) {
    if (!GiveBack(std::exchange(unused, nullptr))) continue;
    added = try_to_add();
    if (added.ok()) break;
  }
  return added;
}

bool NamespaceAdmin::GiveBack(NamespacePtr ns) {
  NodeContext& context = *s_.context;
  MutexLock meta(context.meta_mu);
  {
    NamespaceLock lock(*ns, context.tiers);
    if (ns->dropped.load(std::memory_order_relaxed) || !ns->Unused()) return false;
    ns->dropped.store(true);
  }
  // Blocks of generations that were dropped may still be on disk.
  if (ns->generation > 1) {
    context.registry.RememberGeneration(ns->fingerprint, ns->generation);
  }
  context.registry.Replace(ns, nullptr);
  // Leases of blocks that only a source has.
  const SessionTable::Ended ended = s_.sessions->TakeAllOf(*ns);
  s_.reads->End(ended.leases, MissReason::kAbsent);
  s_.writes->Drop(ended.reservations);
  if (!ns->persisted.load(std::memory_order_relaxed)) return true;
  const Status status =
      ns->generation > 1 ? RewriteNamespaceRecord(context, *ns, ns->generation, true)
                         : context.tiers.persistent->DeleteMeta(NamespaceMetaName(ns->fingerprint));
  // Then the next start finds it without blocks, and forgets it.
  if (!status.ok()) log::Warn("namespace_not_forgotten", {{"error", Message(status)}});
  return true;
}

namespace {

std::vector<TierRoom> RoomOf(const NamespaceState& ns, const Tiers& tiers) {
  std::vector<TierRoom> all;
  const NodeTenant* const tenant = ns.tenant().get();
  if (tenant == nullptr) return all;
  for (const TierKind tier : kTiersByRank) {
    if (tiers.Get(tier) == nullptr) continue;
    const uint64_t most = tenant->most(tier);
    all.push_back({.tier = tier,
                   .bytes = tenant->bytes(tier),
                   .most = most == UINT64_MAX ? std::nullopt : std::optional(most),
                   .guaranteed = tenant->guaranteed(tier)});
  }
  return all;
}

}  // namespace

std::vector<NamespaceInfo> NamespaceAdmin::List(std::string_view tenant) const {
  std::vector<NamespaceInfo> list;
  const auto all = s_.context->registry.All();
  for (const NamespacePtr& ns : *all) {
    if (!tenant.empty() && ns->spec.tenant != tenant) continue;
    constexpr auto kRelaxed = std::memory_order_relaxed;
    constexpr TierKind kHost = TierKind::kHost;
    const HostTier& host = *s_.context->tiers.host;
    std::optional<LearnedPlacement> learned;
    std::vector<PoolBlocks> pools;
    {
      MutexLock lock(ns->mu);
      learned = ns->index.Learned();
      if (!ns->spec.layout.Pools().empty()) {
        for (const PoolTotals& pool : ns->index.of_pools()) {
          pools.push_back({pool.blocks, pool.bytes});
        }
      }
    }
    list.push_back({.spec = ns->spec,
                    .fingerprint = ns->fingerprint,
                    .blocks = ns->blocks.load(kRelaxed),
                    .bytes = ns->bytes.load(kRelaxed),
                    .generation = ns->generation,
                    .host_blocks = ns->blocks_in[kHost].load(kRelaxed),
                    .evicted_host_blocks = ns->evicted_blocks[kHost].load(kRelaxed),
                    .evicted_host_bytes = ns->evicted_bytes[kHost].load(kRelaxed),
                    .tenant_host_bytes = host.BytesOf(host.FindOwner(ns->spec.tenant)),
                    .tenant_room = RoomOf(*ns, s_.context->tiers),
                    .learned = learned ? std::move(learned->groups) : std::vector<LearnedGroup>(),
                    .remembered_blocks = learned ? learned->remembered_blocks : 0,
                    .block_life = ns->life(),
                    .pools = std::move(pools)});
  }
  return list;
}

Result<DropResult> NamespaceAdmin::Drop(const Fingerprint& fingerprint) {
  CAIRN_ASSIGN_OR_RETURN(const NamespacePtr ns, s_.context->registry.GetToDrop(fingerprint));
  DropResult result;
  CAIRN_RETURN_IF_ERROR(Hide(ns, /*keep=*/false, &result));
  return result;
}

Result<DropResult> NamespaceAdmin::DropTenant(std::string_view tenant) {
  if (tenant.empty()) return InvalidArgument("field 'tenant': got '', expected a tenant's name");
  DropResult result;
  Status first_error;
  const auto all = s_.context->registry.All();
  for (const NamespacePtr& ns : *all) {
    if (ns->spec.tenant != tenant) continue;
    // All of them are tried: a tenant who leaves should leave as far as possible.
    Status status = Hide(ns, /*keep=*/false, &result);
    if (first_error.ok()) first_error = std::move(status);
  }
  CAIRN_RETURN_IF_ERROR(first_error);
  return result;
}

Result<DropResult> NamespaceAdmin::BumpEpoch(const Fingerprint& fingerprint) {
  CAIRN_ASSIGN_OR_RETURN(const NamespacePtr ns, s_.context->registry.GetToDrop(fingerprint));
  DropResult result;
  CAIRN_RETURN_IF_ERROR(Hide(ns, /*keep=*/true, &result));
  return result;
}

uint64_t NamespaceAdmin::NobodysDigest() const {
  const Bump::Id id = s_.new_bump_id();
  return std::max<uint64_t>(1, Xxh3(std::as_bytes(std::span(id))));
}

Status NamespaceAdmin::Hide(const NamespacePtr& ns, bool keep, DropResult* result) {
  MutexLock one(bumps_mu_);
  BumpLog& known = s_.context->bumps;
  const Bump bump{ns->fingerprint, s_.new_bump_id()};
  const std::span<const Bump> bumps(&bump, 1);
  const BumpLog::Change change(&known, bumps, NobodysDigest());
  Status durable = HideGeneration(ns, keep, result);
  if (durable.ok()) {
    durable = Annotate(s_.bump_records->Append(bumps),
                       "dropped, but other members are not told of it after a restart");
  }
  // Whatever the disk says: the others must hide theirs, too.
  known.Add(bumps);
  return durable;
}

Result<size_t> NamespaceAdmin::TakeOver(std::span<const Bump> bumps) {
  if (bumps.size() > BumpPage::kMost) {
    return InvalidArgument("field 'bumps': got {}, expected at most {}", bumps.size(),
                           BumpPage::kMost);
  }
  MutexLock one(bumps_mu_);
  BumpLog& known = s_.context->bumps;
  const std::vector<Bump> unknown = known.UnknownOf(bumps);
  if (unknown.empty()) return size_t{0};
  CAIRN_ASSIGN_OR_RETURN(const MemoryCharge room, known.ChargeFor(unknown.size()));
  const BumpLog::Change change(&known, unknown, NobodysDigest());
  DropResult hidden;
  absl::flat_hash_set<Fingerprint> done;
  for (const Bump& bump : unknown) {
    if (!done.insert(bump.fingerprint).second) continue;
    const NamespacePtr ns = s_.context->registry.Find(bump.fingerprint);
    if (ns != nullptr) CAIRN_RETURN_IF_ERROR(HideGeneration(ns, /*keep=*/true, &hidden));
  }
  CAIRN_RETURN_IF_ERROR(s_.bump_records->Append(unknown));
  known.Add(unknown);
  log::Info("bumps_taken_over", {{"bumps", log::Num(unknown.size())},
                                 {"namespaces", log::Num(hidden.namespaces)},
                                 {"hidden_blocks", log::Num(hidden.hidden_blocks)}});
  return unknown.size();
}

Status NamespaceAdmin::HideGeneration(const NamespacePtr& ns, bool keep, DropResult* result) {
  NodeContext& context = *s_.context;
  Status durable;
  {
    MutexLock meta(context.meta_mu);
    NamespacePtr next;
    if (keep) {
      next = std::make_shared<NamespaceState>(ns->stored, ns->generation + 1,
                                              context.options.eviction, context.seed, ns->charge);
      MutexLock lock(next->mu);
      next->SetLife(ns->life());
    }
    context.registry.RememberGeneration(ns->fingerprint, ns->generation + 1);
    if (!context.registry.Replace(ns, next)) {
      return OkStatus();  // Somebody else dropped it just now.
    }
    {
      NamespaceLock lock(*ns, context.tiers);
      ns->dropped.store(true);
      ++result->namespaces;
      result->hidden_blocks += ns->index.blocks();
      context.Publish(CacheEvent::Kind::kNamespaceDropped, *ns, BlockKey{}, TierKind::kHost);
    }
    if (context.tiers.persistent != nullptr) {
      durable = RewriteNamespaceRecord(context, *ns, ns->generation + 1, !keep);
      if (durable.ok() && keep) next->persisted.store(true);
    }
  }
  const SessionTable::Ended ended = s_.sessions->TakeAllOf(*ns);
  s_.reads->End(ended.leases, MissReason::kAbsent);
  s_.writes->Drop(ended.reservations);
  s_.reclaimer->Add(ns);
  return Annotate(durable, "dropped in memory, but not recorded on disk");
}

}  // namespace cairn::cache
