#pragma once
// The node's part in a cluster, as a process has it: discovery, connections, threads.

#include <memory>
#include <string>

#include "common/concurrency/executor.h"
#include "common/concurrency/timers.h"
#include "common/membership/discovery.h"
#include "common/membership/resolver.h"
#include "common/metrics/metrics.h"
#include "common/rpc/call_server.h"
#include "services/cache/cluster/members/cluster.h"
#include "services/cache/serve/node/link_setup.h"
#include "services/cache/serve/node/node_config.h"
#include "services/cache/serve/rpc/grpc_peer_links.h"
#include "services/cache/serve/rpc/peer_read_call.h"
#include "services/cache/serve/rpc/rpc_context.h"

namespace cairn::cache {

// Made before the engine, which asks its source. In this order: Create, the engine, Attach,
// AddTo, Start, and at the end Leave, StopThreads, and after the engine the destructor.
class ClusterMember {
 public:
  // `devices`: nullptr: there is no device tier; else it outlives the member. INVALID_ARGUMENT or
  // FAILED_PRECONDITION names the setting that cannot work.
  static Result<std::unique_ptr<ClusterMember>> Create(const NodeConfig& config,
                                                       const std::string& node_id,
                                                       uint64_t node_epoch, DeviceTier* devices,
                                                       MemoryAccount* memory,
                                                       metrics::Registry* registry);
  ~ClusterMember();

  BlockSource* source() { return cluster_->source(); }
  Timers* timers() { return &timers_; }
  Cluster& cluster() { return *cluster_; }
  // Why it has no links between GPUs, though its settings ask for them. Empty: it has what they ask
  // for. Any thread.
  const std::string& no_links() const { return no_links_; }
  // The service for other members, before the server starts.
  void AddTo(rpc::CallServer* server, RpcContext* rpc);
  // The engine is there. Before the server starts.
  void Attach(CacheEngine* engine);
  // The server listens. Waits for a moment until the node knows the bumps that other members know,
  // if any of them answers.
  Status Start();
  // Members do not count on this node any more. It goes on to answer them.
  void Leave();
  // Nothing asks or tells the engine any more. The server has shut down. The timers run on until
  // the destructor: reads that wait for one end with it.
  void StopThreads();

 private:
  explicit ClusterMember(const NodeConfig& config)
      : config_(config),
        rule_{.identities = config.cluster.peer_identities,
              .certificates = config.rpc.tls.mutual()},
        reads_(config.cluster.max_reads) {}
  Status MakeDiscovery();
  void Run();

  const NodeConfig config_;
  const PeerRule rule_;
  Gate reads_;  // The reads of other members that are under way.
  // A pool of its own: what other members want must not hold up this node's clients.
  std::unique_ptr<ThreadPool> executor_;
  // For answers of other members, on which clients wait: no thread of it waits for a disk.
  std::unique_ptr<ThreadPool> answers_;
  Timers timers_{&SteadyClock::Get()};
  std::unique_ptr<membership::Resolver> resolver_;
  std::unique_ptr<membership::Discovery> discovery_;
  std::unique_ptr<GrpcPeerLinks> links_;
  std::unique_ptr<NodeLinks> gpu_links_;  // nullptr: blocks go over gRPC alone.
  std::string no_links_;
  std::unique_ptr<Cluster> cluster_;
  std::shared_ptr<PeerReads> peer_reads_;
  bool discovering_ = false;
  Mutex mu_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace cairn::cache
