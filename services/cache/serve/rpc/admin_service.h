#pragma once
// cairn.v1.Admin over a CacheEngine, for callers of the admin role.

#include "common/rpc/call_server.h"
#include "services/cache/serve/rpc/rpc_context.h"

namespace cairn::cache {

// `rpc` outlives the server.
void AddAdminService(rpc::CallServer* server, RpcContext* rpc);

}  // namespace cairn::cache
