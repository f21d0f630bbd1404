#pragma once
// The main path of a client: gRPC.

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/v1/cache.grpc.pb.h"
#include "clients/cpp/src/core/release_queue.h"
#include "clients/cpp/src/core/transport.h"
#include "clients/cpp/src/grpc/data_connections.h"
#include "clients/cpp/src/grpc/grpc_release_sender.h"
#include "clients/cpp/src/grpc/grpc_session_link.h"
#include "common/rpc/channel.h"

namespace cairn::client {

class GrpcFetch;

// Thread-safe.
class GrpcTransport final : public MainTransport {
 public:
  // A connection for small calls and the session, one for events and others for Fetch and Push, so
  // that a match is not queued behind a snapshot or the bytes of a fetch.
  struct Channels {
    std::shared_ptr<grpc::Channel> control;
    std::shared_ptr<grpc::Channel> events;
    std::vector<std::shared_ptr<grpc::Channel>> data;
  };
  // `clock` must outlive it, and must run like the system's: gRPC waits by that one.
  GrpcTransport(Channels channels, GrpcSessionLink::Client client, const Clock* clock);

  Path path() const override { return Path::kGrpc; }
  SessionLink& link() override { return link_; }
  void Look() override { releases_.Look(); }
  uint64_t dropped_releases() const override { return releases_.dropped(); }

  Result<OpenedNamespace> OpenNamespace(const NamespaceSpec& spec, const NamespaceOptions& how,
                                        const CallOptions& options, TimePoint deadline) override;
  std::optional<Result<Matched>> Match(const TransportCall& call, const Digest& fingerprint,
                                       std::span<const BlockKey> keys,
                                       const MatchOptions& options) override;
  std::optional<FetchReport> Fetch(const LeaseInfo& lease, const FetchRange& range, FetchSink& sink,
                                   const FetchOptions& options, TimePoint deadline) override;
  // nullopt: the node knows no lookups in a Fetch, or refuses this one, and then the match too.
  std::optional<RowReport> FetchRows(const LeaseInfo& lease, const RowsWanted& wanted,
                                     RowSink& sink, const FetchOptions& options,
                                     TimePoint deadline) override;
  std::optional<GetReport> Get(const TransportCall& call, const Digest& fingerprint,
                               std::span<const BlockKey> keys, const LayerRange& layers,
                               FetchSink& sink, const MatchOptions& match,
                               const FetchOptions& fetch, TimePoint deadline) override;
  std::optional<PushReport> Push(const TransportCall& call, const Digest& fingerprint,
                                 std::span<const PartToPush> parts,
                                 const PushOptions& options) override;
  std::optional<Result<TierList>> Exists(const TransportCall& call, const Digest& fingerprint,
                                         std::span<const BlockKey> keys,
                                         const CallOptions& options) override;
  std::optional<Result<Duration>> Renew(const LeaseInfo& lease, Duration ttl,
                                        const CallOptions& options, TimePoint deadline) override;
  bool Release(const LeaseInfo& lease) override;
  Result<PrefetchOutcome> Prefetch(const TransportCall& call, const Digest& fingerprint,
                                   std::span<const BlockKey> keys, Duration needed_in,
                                   const CallOptions& options) override;
  Status Flush(const CallOptions& options, TimePoint deadline) override;
  Result<NodeStats> Stat(const CallOptions& options, TimePoint deadline) override;
  Result<std::unique_ptr<EventStream>> WatchEvents(const SessionPtr& session,
                                                   const WatchOptions& options) override;

 private:
  // Asks for slices that came wrong once more, under a lease of its own: that of the call has ended
  // with it.
  Status FetchWrongSlices(GrpcFetch& fetch, v1::FetchRequest request, const FetchOptions& options,
                          TimePoint deadline);

  const Clock* const clock_;
  // Each thread-safe.
  const std::unique_ptr<v1::Cache::Stub> stub_;
  rpc::Reconnect events_reconnect_;
  const std::unique_ptr<grpc::GenericStub> events_;
  DataConnections data_;
  GrpcReleaseSender sender_;
  ReleaseQueue releases_;
  GrpcSessionLink link_;
};

}  // namespace cairn::client
