// ClusterEvents over gRPC.

#include <map>
#include <utility>

#include "cairn/client/cluster_events.h"
#include "clients/cpp/src/core/cluster_watcher.h"
#include "clients/cpp/src/grpc/channel.h"
#include "common/concurrency/mutex.h"

namespace cairn::client {
namespace {

// A stream that keeps its client.
class OwningStream final : public EventStream {
 public:
  OwningStream(std::shared_ptr<CacheClient> client, std::unique_ptr<EventStream> stream)
      : client_(std::move(client)), stream_(std::move(stream)) {}
  Result<std::optional<CacheEvent>> Next(Duration wait) override { return stream_->Next(wait); }
  void Cancel() override { stream_->Cancel(); }

 private:
  const std::shared_ptr<CacheClient> client_;
  const std::unique_ptr<EventStream> stream_;  // Ends first.
};

class GrpcClusterTransport final : public ClusterTransport {
 public:
  explicit GrpcClusterTransport(ConnectOptions connection) : connection_(std::move(connection)) {}

  Result<ClusterMembers> Members(const std::string& address, Duration limit) override {
    std::shared_ptr<ClusterClient> client;
    {
      MutexLock lock(mu_);
      std::shared_ptr<ClusterClient>& known = clients_[address];
      if (known == nullptr) {
        CAIRN_ASSIGN_OR_RETURN(known, ConnectCluster(At(address)));
      }
      client = known;
    }
    auto members = client->Members({.deadline = limit, .trace = ""});
    // A node that is gone for good must not leave a connection behind for each of its addresses.
    if (!members.ok()) {
      MutexLock lock(mu_);
      clients_.erase(address);
    }
    return members;
  }

  Result<std::unique_ptr<EventStream>> Watch(const std::string& address,
                                             const WatchOptions& options) override {
    CAIRN_ASSIGN_OR_RETURN(std::shared_ptr<CacheClient> client, Connect(At(address)));
    CAIRN_ASSIGN_OR_RETURN(auto stream, client->WatchEvents(options));
    return std::make_unique<OwningStream>(std::move(client), std::move(stream));
  }

 private:
  ConnectOptions At(const std::string& address) const {
    ConnectOptions connection = connection_;
    connection.address = address;
    connection.path = PathChoice::kGrpc;
    return connection;
  }

  const ConnectOptions connection_;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<ClusterClient>> clients_ ABSL_GUARDED_BY(mu_);
};

std::vector<std::string> Split(const std::string& addresses) {
  std::vector<std::string> list;
  for (size_t at = 0; at <= addresses.size();) {
    const size_t end = std::min(addresses.find(',', at), addresses.size());
    if (end > at) list.push_back(addresses.substr(at, end - at));
    at = end + 1;
  }
  return list;
}

}  // namespace

Result<std::unique_ptr<ClusterEvents>> WatchCluster(const ConnectOptions& connection,
                                                    const ClusterWatchOptions& options) {
  std::vector<std::string> seeds = Split(connection.address);
  if (seeds.empty()) return InvalidArgument("field 'address': got '', expected host:port");
  for (const std::string& seed : seeds) {
    ConnectOptions one = connection;
    one.address = seed;
    CAIRN_RETURN_IF_ERROR(NewChannel(one).status());
  }
  if (options.queue < 1) return InvalidArgument("field 'queue': got 0, expected at least 1");
  // A client that names a tenant gets the events of that tenant alone.
  return std::make_unique<ClusterWatcher>(std::make_unique<GrpcClusterTransport>(connection),
                                          std::move(seeds), options,
                                          /*whole=*/connection.tenant.empty());
}

}  // namespace cairn::client
