#include "services/cache/store/state/namespace_record.h"

#include "services/cache/store/block/record.h"

namespace cairn::cache {

Status PersistNamespace(NodeContext& context, NamespaceState& ns) {
  PersistentTier* const tier = context.tiers.persistent;
  if (tier == nullptr || ns.persisted.load(std::memory_order_acquire)) return OkStatus();
  MutexLock lock(context.meta_mu);
  if (ns.dropped.load(std::memory_order_acquire)) {
    return Errorf(StatusCode::kNotFound, "namespace was dropped");
  }
  CAIRN_RETURN_IF_ERROR(RewriteNamespaceRecord(context, ns, ns.generation, false));
  ns.persisted.store(true, std::memory_order_release);
  return OkStatus();
}

Status RewriteNamespaceRecord(NodeContext& context, const NamespaceState& ns, uint64_t generation,
                              bool dropped) {
  return context.tiers.persistent->PutMeta(NamespaceMetaName(ns.fingerprint),
                                           EncodeNamespaceRecord({.spec = ns.spec,
                                                                  .generation = generation,
                                                                  .dropped = dropped,
                                                                  .block_life = ns.life()}));
}

}  // namespace cairn::cache
