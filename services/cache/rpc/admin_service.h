#pragma once
// cairn.v1.Admin over a CacheEngine, for callers of the admin role.

#include "services/cache/rpc/call.h"

namespace cairn::cache {

// `rpc` outlives the server.
void AddAdminService(CallServer* server, RpcContext* rpc);

}  // namespace cairn::cache
