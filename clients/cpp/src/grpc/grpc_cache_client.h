#pragma once
// CacheClient over gRPC: guards each call with breaker, session and deadline, and counts how it
// ended.

#include <grpcpp/channel.h>
#include <grpcpp/generic/generic_stub.h>

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "cairn/client/connect.h"
#include "cairn/v1/cache.grpc.pb.h"
#include "clients/cpp/src/buffered_push.h"
#include "clients/cpp/src/circuit_breaker.h"
#include "clients/cpp/src/grpc/data_connections.h"
#include "clients/cpp/src/grpc/release_queue.h"
#include "clients/cpp/src/grpc/session.h"
#include "clients/cpp/src/local/local_path.h"
#include "clients/cpp/src/slice_assembler.h"

namespace cairn::client {

class GrpcCacheClient final : public CacheClient {
 public:
  // A connection for small calls and the session, one for events and others for Fetch and Push, so
  // that a match is not queued behind a snapshot or the bytes of a fetch.
  GrpcCacheClient(const ConnectOptions& options, std::shared_ptr<grpc::Channel> control,
                  std::shared_ptr<grpc::Channel> events,
                  std::vector<std::shared_ptr<grpc::Channel>> data);
  ~GrpcCacheClient() override;

  Result<OpenedNamespace> OpenNamespace(const NamespaceSpec& spec,
                                        const CallOptions& options) override;
  Result<MatchOutcome> Match(const Digest& fingerprint, std::span<const BlockKey> keys,
                             const MatchOptions& options) override;
  Status Fetch(const Lease& lease, const FetchRange& range, FetchSink& sink,
               const FetchOptions& options) override;
  Result<MatchOutcome> Get(const Digest& fingerprint, std::span<const BlockKey> keys,
                           const LayerRange& layers, FetchSink& sink, const MatchOptions& match,
                           const FetchOptions& fetch) override;
  Result<std::vector<Status>> Push(const Digest& fingerprint, std::span<const PartToPush> parts,
                                   const PushOptions& options) override;
  Result<PrefetchOutcome> Prefetch(const Digest& fingerprint, std::span<const BlockKey> keys,
                                   Duration needed_in, const CallOptions& options) override;
  Result<std::unique_ptr<InPlacePush>> BeginPush(const Digest& fingerprint,
                                                 std::span<const PartToWrite> parts,
                                                 const PushOptions& options) override;
  Result<std::vector<std::optional<TierKind>>> Exists(const Digest& fingerprint,
                                                      std::span<const BlockKey> keys,
                                                      const CallOptions& options) override;
  Result<Duration> RenewLease(const Lease& lease, Duration ttl,
                              const CallOptions& options) override;
  Status Flush(const CallOptions& options) override;
  Result<NodeStats> Stat(const CallOptions& options) override;
  Result<std::unique_ptr<EventStream>> WatchEvents(const WatchOptions& options) override;
  ClientStats GetStats() const override;

 private:
  class LeaseReturn;

  // Runs `call(session)` if the breaker allows it and there is a session by `deadline`; once more
  // if that session proves to be over. Tells the breaker how it went.
  template <typename Call>
  Status Guarded(TimePoint deadline, Call call);
  // Counts how a call ended and returns its status.
  Status Count(Status status);
  // One fetch, and another stream for each block of which a slice came wrong. `*got_bytes`: the
  // node was alive and sending.
  Status RunFetch(const Lease& lease, const FetchRange& range, SliceAssembler& assembler,
                  const FetchOptions& options, TimePoint deadline, bool* got_bytes);
  // A lookup at the beginning of a stream, and its answer.
  struct Lookup {
    size_t asked = 0;  // Keys.
    double prefill_tokens_per_second = 0;
    TimePoint deadline;  // Of the answer.
    std::optional<MatchOutcome> answer = {};
  };
  // As RunFetch, of what the node finds.
  Status RunGet(const Session::Current& session, const Digest& fingerprint,
                std::span<const BlockKey> keys, const LayerRange& layers, Lookup& lookup,
                SliceAssembler& assembler, const FetchOptions& options, TimePoint deadline,
                bool* got_bytes);
  // `request` again, for the blocks with wrong slices.
  Status FetchAgain(v1::FetchRequest request, SliceAssembler& assembler,
                    const FetchOptions& options, TimePoint deadline, bool* got_bytes);
  // One stream. `lookup`: of a request that has one, else null.
  Status FetchPass(const v1::FetchRequest& request, Lookup* lookup, SliceAssembler& assembler,
                   const FetchOptions& options, TimePoint deadline, bool* got_bytes);
  // Without the lease. INTERNAL for more blocks than were `asked` for.
  static Result<MatchOutcome> ToOutcome(const v1::MatchResponse& response, size_t asked);
  void CountFetched(const SliceAssembler::Counts& counts);

  Lease NewLease(LeaseInfo info);
  // The same calls over the same-node session (local_calls.cc). True: it has answered, with
  // `*status`; false: the call is for gRPC.
  bool MatchLocal(const Session::Current& session, const Digest& fingerprint,
                  std::span<const BlockKey> keys, const MatchOptions& options, TimePoint begin,
                  MatchOutcome* outcome, Status* status);
  bool ExistsLocal(const Session::Current& session, const Digest& fingerprint,
                   std::span<const BlockKey> keys, TimePoint deadline,
                   std::vector<std::optional<TierKind>>* tiers, Status* status);
  // Parts that need gRPC have RESOURCE_EXHAUSTED in `results`, which has the size of `parts`.
  bool PushLocal(const Session::Current& session, const Digest& fingerprint,
                 std::span<const PartToPush> parts, TimePoint deadline,
                 std::vector<Status>* results, Status* status);
  bool RenewLocal(const Lease& lease, Duration ttl, TimePoint deadline, Duration* granted,
                  Status* status);
  Status FetchLocal(std::shared_ptr<local::LeasePin> pin, const Lease& lease,
                    const FetchRange& range, FetchSink& sink, const FetchOptions& options,
                    TimePoint deadline, bool* got_bytes);
  // Whether a call over the same-node session has ended with `status`, or goes on over gRPC.
  bool Answered(const Status& status);
  // Fetch over gRPC, without the breaker.
  Status FetchRemote(const Lease& lease, const FetchRange& range, FetchSink& sink,
                     const FetchOptions& options, TimePoint deadline, bool* got_bytes);

  // Each thread-safe.
  const std::unique_ptr<v1::Cache::Stub> stub_;
  const std::unique_ptr<grpc::GenericStub> events_;
  DataConnections data_;
  CircuitBreaker breaker_;
  ReleaseQueue releases_;
  local::LocalPath local_;
  const std::shared_ptr<PartBuffers> buffers_;
  const std::shared_ptr<LeaseReturn> leases_;
  Session session_;  // Last: its thread uses the breaker.

  // Totals; relaxed, since nothing is concluded from their order.
  struct Totals {
    std::atomic<uint64_t> matches{0}, matched_blocks{0}, fetches{0}, fetched_slices{0},
        pushed_parts{0}, pushed_bytes{0}, corrupt_slices{0};
    std::array<std::atomic<uint64_t>, kTierCount> fetched_bytes{};
    std::array<std::atomic<uint64_t>, kPathCount> fetched_by_path{};
    std::atomic<uint64_t> lent_bytes{0}, local_fallbacks{0}, pushed_local{0};
    std::array<std::atomic<uint64_t>, 17> by_code{};
  } totals_;
};

template <typename Call>
Status GrpcCacheClient::Guarded(TimePoint deadline, Call call) {
  CircuitBreaker::Permit permit = breaker_.Ask();
  if (!permit) {
    return Count(Errorf(StatusCode::kUnavailable,
                        "the node failed repeatedly; it is not asked for a while"));
  }
  Result<Session::Current> session = session_.Get(deadline);
  Status status = session.ok() ? call(*session) : session.status();
  if (status.code() == StatusCode::kNotFound && session_.HasEnded(session->id, deadline)) {
    // The node was restarted, and nobody has noticed yet that the session is gone.
    session = session_.Get(deadline);
    status = session.ok() ? call(*session) : session.status();
  }
  if (CountsAsFailure(status.code())) {
    session_.Look();
    permit.Failed();
  } else if (status.code() != StatusCode::kCancelled) {
    permit.Succeeded();
  }
  return Count(status);
}

}  // namespace cairn::client
