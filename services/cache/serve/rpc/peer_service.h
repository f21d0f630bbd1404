#pragma once
// The service Peer: what other members of the cluster ask.

#include <memory>

#include "common/rpc/call_server.h"
#include "services/cache/cluster/members/cluster.h"
#include "services/cache/serve/rpc/peer_read_call.h"
#include "services/cache/serve/rpc/peer_rule.h"
#include "services/cache/serve/rpc/rpc_context.h"

namespace cairn::cache {

// Adds the service before the server starts. `executor` runs what waits for the disk, `gate` bounds
// the reads under way. `lender`: nullptr: there is no link to other members. All outlive the
// server. The caller ticks the reads.
std::shared_ptr<PeerReads> AddPeerService(rpc::CallServer* server, RpcContext* rpc,
                                          Cluster* cluster, PeerRule rule, Executor* executor,
                                          Gate* gate, BlockLender* lender = nullptr);

}  // namespace cairn::cache
