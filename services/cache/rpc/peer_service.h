#pragma once
// The service Peer: what other members of the cluster ask.

#include "common/rpc/call_server.h"
#include "services/cache/cluster/cluster.h"
#include "services/cache/rpc/rpc_context.h"

namespace cairn::cache {

// Who may call, beside what the transport demands of all callers.
struct PeerRule {
  // With mutual TLS: a name of the caller's certificate must be one of these, where {node_id}
  // stands for the id that the caller says it has. Empty: any certificate that the authority
  // signed.
  std::vector<std::string> identities;
  bool certificates = false;  // Callers show certificates.
};

// Adds the service before the server starts. `executor` runs what waits for the disk, `gate` bounds
// the reads under way. All outlive the server.
void AddPeerService(rpc::CallServer* server, RpcContext* rpc, Cluster* cluster, PeerRule rule,
                    Executor* executor, Gate* gate);

}  // namespace cairn::cache
