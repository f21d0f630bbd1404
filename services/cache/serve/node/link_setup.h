#pragma once
// The links of a node to other members as its settings ask for them: NCCL, calls over gRPC, and
// their metrics.

#include <memory>
#include <string>

#include "common/concurrency/timers.h"
#include "common/link/nccl/communicator.h"
#include "common/metrics/metrics.h"
#include "common/rpc/call_server.h"
#include "protocol/link/grpc_link_calls.h"
#include "services/cache/cluster/link/member_links.h"
#include "services/cache/cluster/members/cluster.h"
#include "services/cache/serve/node/node_config.h"
#include "services/cache/serve/rpc/grpc_peer_links.h"
#include "services/cache/serve/rpc/peer_rule.h"
#include "services/cache/serve/rpc/rpc_context.h"

namespace cairn::cache {

// Loads NCCL if the settings ask for it, which may change the environment: before there are
// threads. If something is missing, it is logged, and Open goes on without links.
void PrepareLinks(const NodeConfig& config);

class NodeLinks {
 public:
  // nullptr: the settings ask for no links. Errors say what is missing, such as NCCL or a GPU, and
  // are logged: blocks go over gRPC. `tier`: nullptr where the node has none. All outlive it.
  static Result<std::unique_ptr<NodeLinks>> Open(const NodeConfig& config,
                                                 const std::string& node_id, DeviceTier* tier,
                                                 GrpcPeerLinks* peers, Timers* timers);
  ~NodeLinks() { Stop(); }

  MemberLinks& members() { return *members_; }
  // The service Link, before the server starts. Callers are members that `cluster` knows.
  void AddTo(rpc::CallServer* server, const RpcContext* rpc, Cluster* cluster, PeerRule rule);
  // Before the cluster goes; the timers run. Takes as long as links that hang are allowed to.
  void Stop();

 private:
  NodeLinks() = default;

  std::unique_ptr<link::nccl::Maker> maker_;
  std::unique_ptr<link::GrpcLinkCalls> calls_;
  std::unique_ptr<MemberLinks> members_;
};

// Metrics of links, if the settings ask for them. `links`: nullptr: something is missing.
void ExportLinks(const NodeConfig& config, NodeLinks* links, Cluster* cluster,
                 metrics::Registry* registry);

}  // namespace cairn::cache
