#include "services/cache/engine/namespace_admin.h"

#include <algorithm>

#include "common/log/log.h"
#include "services/cache/block/record.h"

namespace cairn::cache {
namespace {

constexpr size_t kMaxSimilar = 8;

}  // namespace

Result<OpenedNamespace> NamespaceAdmin::Open(const NamespaceSpec& spec, bool strict) {
  const auto wanted = StoredNamespace::Of(spec);
  CAIRN_RETURN_IF_ERROR(wanted->storage.status());
  NodeContext& context = *s_.context;
  OpenedNamespace opened;
  opened.fingerprint = wanted->fingerprint;

  std::vector<std::pair<NamespacePtr, FieldDifference>> similar;
  const auto all = context.registry.All();
  for (const NamespacePtr& other : *all) {
    if (other->spec.tenant != spec.tenant || other->fingerprint == opened.fingerprint) continue;
    if (!other->readable().ok()) continue;  // Its blocks would help nobody.
    auto differences =
        Differences(other->spec, other->storage().recipe, spec, wanted->storage->recipe);
    if (differences.size() == 1) similar.emplace_back(other, std::move(differences[0]));
  }
  std::sort(similar.begin(), similar.end(), [](const auto& a, const auto& b) {
    return a.first->blocks.load(std::memory_order_relaxed) >
           b.first->blocks.load(std::memory_order_relaxed);
  });
  for (const auto& [other, difference] : similar) {
    if (opened.differs.size() == kMaxSimilar) break;
    opened.differs.push_back({difference, other->blocks.load(std::memory_order_relaxed)});
  }
  NamespacePtr ns = context.registry.Find(opened.fingerprint);
  if (strict && ns == nullptr && !similar.empty()) {
    const auto& [field, stored, requested] = similar[0].second;
    return Errorf(StatusCode::kFailedPrecondition,
                  "field '{}': got '{}', but a stored namespace of this tenant that is equal "
                  "otherwise has '{}'",
                  field, requested, stored);
  }
  if (ns == nullptr) {
    CAIRN_ASSIGN_OR_RETURN(auto added,
                           context.registry.Open(opened.fingerprint, [&](uint64_t generation) {
                             return std::make_shared<NamespaceState>(wanted, generation,
                                                                     &context.policy, context.seed);
                           }));
    ns = std::move(added.state);
    opened.created = added.created;
    if (opened.created && context.tiers.persistent != nullptr) {
      // Not waited for: no block is copied to disk before the record is there, and each copy tries
      // again.
      const Status posted = context.executor->Post([this, ns] {
        if (Status status = s_.write_back->Persist(*ns); !status.ok()) {
          log::Warn("namespace_not_persisted", {{"error", Message(status)}});
        }
      });
      if (!posted.ok()) log::Warn("namespace_not_persisted", {{"error", Message(posted)}});
    }
  }
  MutexLock lock(ns->similar_mu);
  ns->similar.clear();
  for (const auto& [other, difference] : similar) ns->similar.push_back(other);
  return opened;
}

std::vector<NamespaceInfo> NamespaceAdmin::List(std::string_view tenant) const {
  std::vector<NamespaceInfo> list;
  const auto all = s_.context->registry.All();
  for (const NamespacePtr& ns : *all) {
    if (!tenant.empty() && ns->spec.tenant != tenant) continue;
    constexpr auto kRelaxed = std::memory_order_relaxed;
    constexpr TierKind kHost = TierKind::kHost;
    const HostTier& host = *s_.context->tiers.host;
    list.push_back({.spec = ns->spec,
                    .fingerprint = ns->fingerprint,
                    .blocks = ns->blocks.load(kRelaxed),
                    .bytes = ns->bytes.load(kRelaxed),
                    .generation = ns->generation,
                    .host_blocks = ns->blocks_in[kHost].load(kRelaxed),
                    .evicted_host_blocks = ns->evicted_blocks[kHost].load(kRelaxed),
                    .evicted_host_bytes = ns->evicted_bytes[kHost].load(kRelaxed),
                    .tenant_host_bytes = host.BytesOf(host.FindOwner(ns->spec.tenant))});
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

Status NamespaceAdmin::Hide(const NamespacePtr& ns, bool keep, DropResult* result) {
  NodeContext& context = *s_.context;
  Status durable;
  {
    MutexLock meta(context.meta_mu);
    NamespacePtr next;
    if (keep) {
      next = std::make_shared<NamespaceState>(ns->stored, ns->generation + 1, &context.policy,
                                              context.seed);
    }
    context.registry.RememberGeneration(ns->fingerprint, ns->generation + 1);
    if (!context.registry.Replace(ns, next))
      return OkStatus();  // Somebody else dropped it just now.
    {
      NamespaceLock lock(*ns, context.tiers);
      ns->dropped.store(true);
      ++result->namespaces;
      result->hidden_blocks += ns->index.blocks();
      context.Publish(CacheEvent::Kind::kNamespaceDropped, *ns, BlockKey{}, TierKind::kHost);
    }
    if (context.tiers.persistent != nullptr) {
      durable = context.tiers.persistent->PutMeta(
          NamespaceMetaName(ns->fingerprint),
          EncodeNamespaceRecord(
              {.spec = ns->spec, .generation = ns->generation + 1, .dropped = !keep}));
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
