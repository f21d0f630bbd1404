#include "tools/cairn/cluster/grpc_nodes.h"

#include <map>

#include "cairn/client/connect.h"
#include "common/concurrency/mutex.h"
#include "tools/cairn/cluster/namespaces.h"
#include "tools/cairn/generator/connection.h"

namespace cairn::cli {
namespace {

class Nodes final : public ClusterNodes {
 public:
  Nodes(const TlsFlags& tls, Duration timeout) : tls_(tls), timeout_(timeout) {}

  Result<client::ClusterMembers> Members(const std::string& address) override {
    CAIRN_ASSIGN_OR_RETURN(const auto node, client::ConnectCluster(ConnectionTo(address, tls_)));
    return node->Members(Call());
  }
  // A caller that asks once a second opens one session, not one a second.
  Result<client::NodeStats> Stat(const std::string& address) override {
    std::shared_ptr<client::CacheClient> node;
    {
      MutexLock lock(mu_);
      std::shared_ptr<client::CacheClient>& known = clients_[address];
      if (known == nullptr) {
        client::ConnectOptions options = ConnectionTo(address, tls_);
        options.path = client::PathChoice::kGrpc;
        options.breaker.max_backoff = std::chrono::seconds(1);  // Somebody is looking.
        CAIRN_ASSIGN_OR_RETURN(known, client::Connect(options));
      }
      node = known;
    }
    return node->Stat(Call());
  }
  Result<std::vector<client::NamespaceInfo>> Namespaces(const std::string& address) override {
    return NamespacesOf(ConnectionTo(address, tls_), Call());
  }
  Result<client::DropResult> BumpEpoch(const std::string& address,
                                       const Digest& fingerprint) override {
    CAIRN_ASSIGN_OR_RETURN(const auto node, client::ConnectAdmin(ConnectionTo(address, tls_)));
    return node->BumpEpoch(fingerprint, Call());
  }
  Result<client::DropResult> DropTenant(const std::string& address,
                                        std::string_view tenant) override {
    CAIRN_ASSIGN_OR_RETURN(const auto node, client::ConnectAdmin(ConnectionTo(address, tls_)));
    return node->DropTenant(tenant, Call());
  }
  Result<bool> Drain(const std::string& address) override {
    CAIRN_ASSIGN_OR_RETURN(const auto node, client::ConnectAdmin(ConnectionTo(address, tls_)));
    return node->Drain(Call());
  }

 private:
  client::CallOptions Call() const { return {.deadline = timeout_, .trace = ""}; }

  const TlsFlags tls_;
  const Duration timeout_;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<client::CacheClient>> clients_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<ClusterNodes> NewClusterNodes(const TlsFlags& tls, Duration timeout) {
  return std::make_unique<Nodes>(tls, timeout);
}

}  // namespace cairn::cli
