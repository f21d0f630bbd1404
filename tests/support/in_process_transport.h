#pragma once
// The main path of clients of an InProcessNode: calls of the engine.

#include <memory>
#include <string>

#include "clients/cpp/src/core/transport.h"
#include "tests/support/in_process_node.h"

namespace cairn::testing {

// Threads as SessionLink.
class InProcessLink final : public client::SessionLink {
 public:
  InProcessLink(InProcessNode* node, const Clock* clock, std::string client)
      : node_(node), clock_(clock), client_(std::move(client)) {}
  ~InProcessLink() override { node_->CloseSession(session_); }

  Result<client::SessionInfo> Open() override;
  bool IsOpen(bool) override { return node_->Find(session_).ok(); }
  bool IsDraining() const override { return node_->faults().draining; }
  Status Close() override;
  void Wait(TimePoint) override {}
  void Cancel() override {}

 private:
  InProcessNode* const node_;
  const Clock* const clock_;
  const std::string client_;
  std::string session_;
};

// Thread-safe.
class InProcessTransport final : public client::MainTransport {
 public:
  // Node and clock outlive it.
  InProcessTransport(InProcessNode* node, const Clock* clock, std::string client)
      : node_(*node), clock_(*clock), link_(node, clock, std::move(client)) {}

  client::Path path() const override { return client::Path::kGrpc; }
  client::SessionLink& link() override { return link_; }
  void Look() override {}
  uint64_t dropped_releases() const override { return 0; }

  Result<client::OpenedNamespace> OpenNamespace(const NamespaceSpec& spec,
                                                const client::NamespaceOptions& how,
                                                const client::CallOptions& options,
                                                TimePoint deadline) override;
  std::optional<Result<client::Matched>> Match(const client::TransportCall& call,
                                               const Digest& fingerprint,
                                               std::span<const BlockKey> keys,
                                               const client::MatchOptions& options) override;
  std::optional<client::FetchReport> Fetch(const client::LeaseInfo& lease,
                                           const client::FetchRange& range, client::FetchSink& sink,
                                           const client::FetchOptions& options,
                                           TimePoint deadline) override;
  std::optional<client::RowReport> FetchRows(const client::LeaseInfo& lease,
                                             const client::RowsWanted& wanted,
                                             client::RowSink& sink,
                                             const client::FetchOptions& options,
                                             TimePoint deadline) override;
  // Always nullopt: two calls cost no more than one.
  std::optional<client::GetReport> Get(const client::TransportCall&, const Digest&,
                                       std::span<const BlockKey>, const client::LayerRange&,
                                       client::FetchSink&, const client::MatchOptions&,
                                       const client::FetchOptions&, TimePoint) override {
    return std::nullopt;
  }
  std::optional<client::PushReport> Push(const client::TransportCall& call,
                                         const Digest& fingerprint,
                                         std::span<const client::PartToPush> parts,
                                         const client::PushOptions& options) override;
  std::optional<Result<client::TierList>> Exists(const client::TransportCall& call,
                                                 const Digest& fingerprint,
                                                 std::span<const BlockKey> keys,
                                                 const client::CallOptions& options) override;
  std::optional<Result<Duration>> Renew(const client::LeaseInfo& lease, Duration ttl,
                                        const client::CallOptions& options,
                                        TimePoint deadline) override;
  bool Release(const client::LeaseInfo& lease) override;
  Result<client::PrefetchOutcome> Prefetch(const client::TransportCall& call,
                                           const Digest& fingerprint,
                                           std::span<const BlockKey> keys, Duration needed_in,
                                           const client::CallOptions& options) override;
  Status Flush(const client::CallOptions& options, TimePoint deadline) override;
  Result<client::NodeStats> Stat(const client::CallOptions& options, TimePoint deadline) override;
  Result<std::unique_ptr<client::EventStream>> WatchEvents(
      const client::SessionPtr& session, const client::WatchOptions& options) override;

 private:
  // `result`, if the answer comes in time.
  template <typename T>
  Result<T> Arrived(Result<T> result, TimePoint deadline) {
    CAIRN_RETURN_IF_ERROR(node_.Arrive(deadline));
    return result;
  }
  Result<client::Matched> MatchNow(const client::TransportCall& call, const Digest& fingerprint,
                                   std::span<const BlockKey> keys,
                                   const client::MatchOptions& options);
  // The next item of a fetch, waiting until `until` in the node's time.
  Result<std::optional<cache::FetchStream::Item>> NextItem(cache::FetchStream& stream,
                                                           const client::FetchOptions& options,
                                                           TimePoint until);
  // Reserves, writes and commits parts that fit into one call.
  Status PushGroup(const InProcessNode::Peer& peer, const Digest& fingerprint,
                   std::span<const client::PartToPush> parts, const client::PushOptions& options,
                   std::span<Status> results);

  InProcessNode& node_;
  const Clock& clock_;
  InProcessLink link_;
};

}  // namespace cairn::testing
