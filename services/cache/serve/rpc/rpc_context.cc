#include "services/cache/serve/rpc/rpc_context.h"

#include "services/cache/store/state/namespace_registry.h"

namespace cairn::cache {

Status CheckNamespace(const RpcContext& rpc, const rpc::Call& call, const Digest& fingerprint,
                      auth::Role role) {
  if (call.caller() == nullptr) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const std::string tenant, rpc.engine->TenantOf(fingerprint));
  return call.Allows(role, tenant) ? OkStatus() : NoNamespace(fingerprint);
}

}  // namespace cairn::cache
