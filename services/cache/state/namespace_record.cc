#include "services/cache/state/namespace_record.h"

#include "services/cache/block/record.h"

namespace cairn::cache {

Status PersistNamespace(NodeContext& context, NamespaceState& ns) {
  PersistentTier* const tier = context.tiers.persistent;
  if (tier == nullptr || ns.persisted.load(std::memory_order_acquire)) return OkStatus();
  MutexLock lock(context.meta_mu);
  if (ns.dropped.load(std::memory_order_acquire)) {
    return Errorf(StatusCode::kNotFound, "namespace was dropped");
  }
  CAIRN_RETURN_IF_ERROR(tier->PutMeta(NamespaceMetaName(ns.fingerprint),
                                      EncodeNamespaceRecord({.spec = ns.spec,
                                                             .generation = ns.generation,
                                                             .dropped = false,
                                                             .block_life = ns.life()})));
  ns.persisted.store(true, std::memory_order_release);
  return OkStatus();
}

}  // namespace cairn::cache
