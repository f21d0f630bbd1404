#pragma once
// cairn.v1.Cluster: what operators and routers ask about the cluster.

#include "common/rpc/call_server.h"
#include "services/cache/cluster/members/cluster.h"
#include "services/cache/serve/rpc/rpc_context.h"

namespace cairn::cache {

// Adds the service before the server starts. `cluster`: nullptr: the node is alone. Both outlive
// the server, and the engine of `rpc` outlives its methods.
void AddClusterService(rpc::CallServer* server, RpcContext* rpc, Cluster* cluster);

}  // namespace cairn::cache
