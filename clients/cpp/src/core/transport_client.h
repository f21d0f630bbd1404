#pragma once
// CacheClient over transports: what all paths share.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/client/connect.h"
#include "clients/cpp/src/circuit_breaker.h"
#include "clients/cpp/src/core/buffered_push.h"
#include "clients/cpp/src/core/client_totals.h"
#include "clients/cpp/src/core/node_client.h"
#include "clients/cpp/src/core/session.h"
#include "clients/cpp/src/core/step_thread.h"
#include "clients/cpp/src/core/transport.h"

namespace cairn::client {

// Checks arguments, asks the breaker, gets the session, chooses the path, gives leases to callers
// and takes them back, and counts how each call ended. Thread-safe.
class TransportClient final : public NodeClient {
 public:
  struct Options {
    BreakerOptions breaker = {};
    Duration max_reconnect_backoff = std::chrono::seconds(1);
    uint64_t seed = 0;       // Seed of the jitter between attempts to open a session.
    bool near_only = false;  // Never sends bytes over the main path.
    // The sessions name a tenant: a watch must be a session's, so that it tells no more than that.
    bool names_tenant = false;
    // A thread of the client keeps the session open. Otherwise calls do: a client that nobody calls
    // does nothing, and everything happens on the threads of its callers.
    bool session_thread = false;
    std::string address = {};                     // Address of the node, for GetStats.
    std::vector<KnownNamespace> namespaces = {};  // To open in the first session. Valid.
  };

  // `near` may be nullptr. `clock` must outlive the client.
  TransportClient(const Options& options, const Clock* clock, std::unique_ptr<NearTransport> near,
                  std::unique_ptr<MainTransport> main);
  ~TransportClient() override;

  Result<OpenedNamespace> OpenNamespace(const NamespaceSpec& spec, const CallOptions& options,
                                        const NamespaceOptions& how = {}) override;
  Result<MatchOutcome> Match(const Digest& fingerprint, std::span<const BlockKey> keys,
                             const MatchOptions& options) override;
  Status Fetch(const Lease& lease, const FetchRange& range, FetchSink& sink,
               const FetchOptions& options) override;
  Status FetchRows(const Lease& lease, const RowLayout& layout, uint32_t layer,
                   std::span<const RowGroup> groups, RowSink& sink,
                   const FetchOptions& options) override;
  Result<MatchOutcome> Get(const Digest& fingerprint, std::span<const BlockKey> keys,
                           const LayerRange& layers, FetchSink& sink, const MatchOptions& match,
                           const FetchOptions& fetch) override;
  Result<std::vector<Status>> Push(const Digest& fingerprint, std::span<const PartToPush> parts,
                                   const PushOptions& options) override;
  Result<std::unique_ptr<InPlacePush>> BeginPush(const Digest& fingerprint,
                                                 std::span<const PartToWrite> parts,
                                                 const PushOptions& options) override;
  Result<PrefetchOutcome> Prefetch(const Digest& fingerprint, std::span<const BlockKey> keys,
                                   Duration needed_in, const CallOptions& options) override;
  Result<std::vector<std::optional<TierKind>>> Exists(const Digest& fingerprint,
                                                      std::span<const BlockKey> keys,
                                                      const CallOptions& options) override;
  Result<Duration> RenewLease(const Lease& lease, Duration ttl,
                              const CallOptions& options) override;
  Status Flush(const CallOptions& options) override;
  Result<NodeStats> Stat(const CallOptions& options) override;
  Result<std::unique_ptr<EventStream>> WatchEvents(const WatchOptions& options) override;
  ClientStats GetStats() const override;

  NodeCondition condition() const override;
  std::optional<NodePlace> place() const override;
  Status Remember(const NamespaceSpec& spec, const NamespaceOptions& how) override;
  Status Probe(Duration within) override;

 private:
  class LeaseReturn;
  struct Got;

  // Returns call(session) if the breaker allows it and there is a session by `deadline`. Calls once
  // more if that session proves to be over. Tells the breaker how it went. An Answer is made from a
  // Status, and StatusOf(answer) is its status.
  template <typename Answer, typename Call>
  Answer Guarded(TimePoint deadline, Call call);
  // Whether the near path may answer a match.
  bool AsksNear(const MatchOptions& options) const;
  // The answer of the near path, or UNAVAILABLE if there is none and must be. nullopt: the call is
  // for the main path. `ask(near)` as the functions of Transport.
  template <typename Answer, typename Ask>
  std::optional<Answer> AskNear(Ask ask);
  // The near path's answer if there is one, otherwise the main one's.
  template <typename Answer, typename Ask>
  Answer AskPaths(Ask ask);
  // Whether a call over the near path has ended with `status`. False: it goes on over the main one.
  bool Ends(const Status& status);
  // Counts how a call ended.
  Status Count(Status status);

  MatchOutcome ToOutcome(Matched matched, const SessionPtr& session, const Digest& fingerprint,
                         TimePoint begin);
  // Over the near path and, for what it leaves, over the main one.
  FetchReport RunFetch(const LeaseInfo& lease, const FetchRange& range, FetchSink& sink,
                       const FetchOptions& options, TimePoint deadline);
  FetchReport FetchOver(Transport& transport, const LeaseInfo& lease, const FetchRange& range,
                        FetchSink& sink, const FetchOptions& options, TimePoint deadline);
  RowReport RunFetchRows(const LeaseInfo& lease, const RowsWanted& wanted, RowSink& sink,
                         const FetchOptions& options, TimePoint deadline);
  // Tells the breaker how a call for bytes ended that no session's end can repeat.
  void TellBreaker(CircuitBreaker::Permit& permit, const Status& status, bool node_answers,
                   TimePoint deadline);
  Got GetOverMain(const TransportCall& call, const Digest& fingerprint,
                  std::span<const BlockKey> keys, const LayerRange& layers, FetchSink& sink,
                  const MatchOptions& match, const FetchOptions& fetch, TimePoint deadline);
  // `*near_bytes`: of the parts that the near path stored.
  PushReport PushOverPaths(const TransportCall& call, const Digest& fingerprint,
                           std::span<const PartToPush> parts, const PushOptions& options,
                           uint64_t* near_bytes);

  const Options options_;
  const Clock* const clock_;
  const std::unique_ptr<NearTransport> near_;  // nullptr: there is none.
  const std::unique_ptr<MainTransport> main_;
  CircuitBreaker breaker_;
  ClientTotals totals_;
  const std::shared_ptr<PartBuffers> buffers_;
  const std::shared_ptr<LeaseReturn> leases_;
  Session session_;
  std::optional<StepThread<Session>> session_thread_;  // Last: it uses everything above.
};

}  // namespace cairn::client
