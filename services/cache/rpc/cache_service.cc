#include "services/cache/rpc/cache_service.h"

#include "cairn/v1/cache.grpc.pb.h"
#include "clients/cpp/wire/convert.h"
#include "services/cache/rpc/fetch_stream.h"
#include "services/cache/rpc/lookup.h"
#include "services/cache/rpc/push_stream.h"
#include "services/cache/rpc/session_stream.h"
#include "services/cache/rpc/watch_stream.h"
#include "services/common/config/config.h"

namespace cairn::cache {
namespace {

constexpr Duration kFlushLimit = std::chrono::minutes(5);

std::span<const uint64_t> Ids(const google::protobuf::RepeatedField<uint64_t>& ids) {
  return {ids.data(), static_cast<size_t>(ids.size())};
}

void ToProto(const EngineStats& stats, bool draining, v1::StatResponse* out) {
  out->set_node_id(stats.node_id);
  out->set_node_epoch(stats.node_epoch);
  out->set_version(std::string(config::Version()));
  out->set_uptime_seconds(stats.uptime_seconds);
  for (size_t i = 0; i < kTierCount; ++i) {
    if (!stats.tiers[i]) continue;
    const TierState& tier = *stats.tiers[i];
    v1::TierStat* to = out->add_tiers();
    to->set_tier(wire::TierToProto(static_cast<TierKind>(i)));
    to->set_capacity_bytes(tier.stats.capacity_bytes);
    to->set_used_bytes(tier.stats.used_bytes);
    to->set_blocks(tier.blocks);
    to->set_read_bytes(tier.stats.read_bytes);
    to->set_written_bytes(tier.stats.written_bytes);
    to->set_evicted_blocks(tier.evicted_blocks);
  }
  out->set_namespaces(stats.namespaces);
  out->set_blocks(stats.blocks);
  out->set_incomplete_blocks(stats.incomplete_blocks);
  out->set_leases(stats.leases);
  out->set_reservations(stats.reservations);
  out->set_reserved_bytes(stats.reserved_bytes);
  out->set_sessions(stats.sessions);
  out->set_unflushed_bytes(stats.unflushed_bytes);
  out->set_index_bytes(stats.index_bytes);
  out->set_matched_tokens(stats.matched_tokens);
  out->set_missed_tokens(stats.missed_tokens);
  out->set_fetched_bytes(stats.fetched_bytes);
  out->set_pushed_bytes(stats.pushed_bytes);
  out->set_fetched_host_bytes(stats.fetched_host_bytes);
  out->set_fetched_disk_bytes(stats.fetched_disk_bytes);
  for (size_t i = 1; i < kMissReasonCount; ++i) {
    v1::MissCount* to = out->add_misses();
    to->set_reason(static_cast<v1::MissReason>(i));
    to->set_blocks(stats.misses[i]);
  }
  out->set_draining(draining);
  out->set_prefill_seconds_saved(stats.prefill_seconds_saved);
  out->set_promoted_blocks(stats.promoted_blocks);
  out->set_corrupt_blocks(stats.corrupt_blocks);
  out->set_prefetched_blocks(stats.prefetched_blocks);
  out->set_prefetched_used_blocks(stats.prefetched_used_blocks);
  out->set_disk_io_mode(stats.disk_io_mode);
}

class Service final : public CacheService {
 public:
  Service(RpcContext* rpc, metrics::Registry* registry)
      : rpc_(rpc), lookups_(rpc->engine, registry), fetches_(rpc->options.send_bytes, &lookups_) {}

  void AddTo(CallServer* server) override {
    AddStreams(server);
    AddReading(server);
    AddWriting(server);
  }

  void Tick() override {
    for (const auto& session : sessions_.All()) session->Tick();
    for (const auto& watch : watches_.All()) watch->Tick();
    for (const auto& fetch : fetches_.open.All()) fetch->Tick();
  }
  void AnnounceDrain() override {
    for (const auto& session : sessions_.All()) session->Tick();
  }
  void EndStreams() override {
    const grpc::Status status(grpc::StatusCode::UNAVAILABLE, "the node is shutting down");
    for (const auto& session : sessions_.All()) session->End(status);
    for (const auto& watch : watches_.All()) watch->End(status);
  }

 private:
  static constexpr std::string_view kService = v1::Cache::service_full_name();

  template <typename Request, typename Response>
  void Add(CallServer* server, Method method, Where where,
           typename UnaryCall<Request, Response>::Handler handler) {
    AddUnary<Request, Response>(server, kService, rpc_, method, where, std::move(handler));
  }

  void AddStreams(CallServer* server) {
    server->Add(Path(kService, Method::kOpenSession),
                [this](std::unique_ptr<RawCall> call, const auto& request) {
                  SessionStream::Open(rpc_, &sessions_, std::move(call), request);
                });
    server->Add(Path(kService, Method::kWatch),
                [this](std::unique_ptr<RawCall> call, const auto& request) {
                  WatchStream::Open(rpc_, &watches_, std::move(call), request);
                });
    server->Add(Path(kService, Method::kFetch),
                [this](std::unique_ptr<RawCall> call, const auto& request) {
                  FetchCall::Start(rpc_, &fetches_, std::move(call), request);
                });
    server->AddStream(Path(kService, Method::kPush), [this](std::unique_ptr<RawCall> call) {
      new PushCall(rpc_, std::move(call));
    });
  }

  // Inline: what needs neither disk nor long copies.
  void AddReading(CallServer* server) {
    Add<v1::MatchRequest, v1::MatchResponse>(
        server, Method::kMatch, Where::kInline,
        [this](Call& call, const v1::MatchRequest& request, v1::MatchResponse* response) -> Status {
          CAIRN_ASSIGN_OR_RETURN(const SessionId session,
                                 rpc_->sessions->Find(request.session_id()));
          CAIRN_ASSIGN_OR_RETURN(
              const MatchResult result,
              lookups_.Match({.session = session,
                              .fingerprint = request.fingerprint(),
                              .keys = request.keys(),
                              .lease_ttl_ms = request.lease_ttl_ms(),
                              .lease = !request.no_lease(),
                              .prefill_tokens_per_second = request.prefill_tokens_per_second(),
                              .trace = call.trace()}));
          ToProto(result, response);
          return OkStatus();
        });
    Add<v1::PrefetchRequest, v1::PrefetchResponse>(
        server, Method::kPrefetch, Where::kInline,
        [this](Call&, const v1::PrefetchRequest& request,
               v1::PrefetchResponse* response) -> Status {
          CAIRN_ASSIGN_OR_RETURN(const SessionId session,
                                 rpc_->sessions->Find(request.session_id()));
          CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint,
                                 Digest::FromBytes(request.fingerprint(), "fingerprint"));
          CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys,
                                 wire::KeysFromProto(request.keys()));
          CAIRN_ASSIGN_OR_RETURN(const PrefetchResult result,
                                 rpc_->engine->Prefetch({.session = session,
                                                         .fingerprint = fingerprint,
                                                         .keys = keys,
                                                         .needed_in = std::chrono::milliseconds(
                                                             request.needed_in_ms())}));
          response->set_present_blocks(result.present_blocks);
          response->set_queued_blocks(result.queued_blocks);
          response->set_absent_blocks(result.absent_blocks);
          response->set_refused_blocks(result.refused_blocks);
          response->set_estimated_seconds(result.estimated_seconds);
          return OkStatus();
        });
    Add<v1::ExistsRequest, v1::ExistsResponse>(
        server, Method::kExists, Where::kInline,
        [this](Call&, const v1::ExistsRequest& request, v1::ExistsResponse* response) -> Status {
          CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint,
                                 Digest::FromBytes(request.fingerprint(), "fingerprint"));
          CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys,
                                 wire::KeysFromProto(request.keys()));
          CAIRN_ASSIGN_OR_RETURN(const auto tiers, rpc_->engine->Exists(fingerprint, keys));
          response->mutable_tiers()->Reserve(static_cast<int>(tiers.size()));
          for (const auto& tier : tiers) response->add_tiers(wire::TierToProto(tier));
          return OkStatus();
        });
    Add<v1::ReleaseRequest, v1::ReleaseResponse>(
        server, Method::kRelease, Where::kInline,
        [this](Call&, const v1::ReleaseRequest& request, v1::ReleaseResponse*) -> Status {
          CAIRN_ASSIGN_OR_RETURN(const SessionId session,
                                 rpc_->sessions->Find(request.session_id()));
          CAIRN_RETURN_IF_ERROR(CheckIds(Ids(request.lease_ids()), 0, kMaxIdsPerCall, "lease_ids"));
          return rpc_->engine->Release(session, Ids(request.lease_ids()));
        });
    Add<v1::RenewLeaseRequest, v1::RenewLeaseResponse>(
        server, Method::kRenewLease, Where::kInline,
        [this](Call&, const v1::RenewLeaseRequest& request,
               v1::RenewLeaseResponse* response) -> Status {
          CAIRN_ASSIGN_OR_RETURN(const SessionId session,
                                 rpc_->sessions->Find(request.session_id()));
          CAIRN_RETURN_IF_ERROR(CheckId(request.lease_id(), "lease_id"));
          CAIRN_ASSIGN_OR_RETURN(const Duration ttl, ToTtl(request.ttl_ms(), "ttl_ms"));
          CAIRN_ASSIGN_OR_RETURN(const Duration granted,
                                 rpc_->engine->RenewLease(session, request.lease_id(), ttl));
          response->set_ttl_ms(ToMs(granted));
          return OkStatus();
        });
    Add<v1::OpenNamespaceRequest, v1::OpenNamespaceResponse>(
        server, Method::kOpenNamespace, Where::kExecutor,
        [this](Call&, const v1::OpenNamespaceRequest& request,
               v1::OpenNamespaceResponse* response) -> Status {
          if (!request.has_spec()) return InvalidArgument("spec: missing, expected a namespace");
          CAIRN_ASSIGN_OR_RETURN(const NamespaceSpec spec, wire::FromProto(request.spec()));
          CAIRN_ASSIGN_OR_RETURN(const NamespaceOpened opened,
                                 rpc_->engine->OpenNamespace(spec, request.strict()));
          response->set_fingerprint(std::string(opened.fingerprint.View()));
          response->set_created(opened.created);
          for (const auto& similar : opened.differs) {
            wire::ToProto(similar.difference, similar.stored_blocks, response->add_differs());
          }
          return OkStatus();
        });
    Add<v1::StatRequest, v1::StatResponse>(
        server, Method::kStat, Where::kInline,
        [this](Call&, const v1::StatRequest&, v1::StatResponse* response) -> Status {
          ToProto(rpc_->engine->GetStats(), rpc_->draining.load(), response);
          return OkStatus();
        });
  }

  void AddWriting(CallServer* server) {
    Add<v1::ReserveRequest, v1::ReserveResponse>(
        server, Method::kReserve, Where::kInline,
        [this](Call&, const v1::ReserveRequest& request, v1::ReserveResponse* response) -> Status {
          CAIRN_ASSIGN_OR_RETURN(const SessionId session,
                                 rpc_->sessions->Find(request.session_id()));
          CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint,
                                 Digest::FromBytes(request.fingerprint(), "fingerprint"));
          if (request.parts_size() < 1 ||
              static_cast<size_t>(request.parts_size()) > kMaxPartsPerCall) {
            return InvalidArgument("parts: got {} of them, expected 1 to {}", request.parts_size(),
                                   kMaxPartsPerCall);
          }
          CAIRN_ASSIGN_OR_RETURN(const Duration ttl, ToTtl(request.ttl_ms(), "ttl_ms"));
          CAIRN_ASSIGN_OR_RETURN(const auto spec, lookups_.specs().Find(fingerprint));
          CAIRN_ASSIGN_OR_RETURN(const auto parts, ToParts(request, spec->layout));
          CAIRN_ASSIGN_OR_RETURN(const auto results,
                                 rpc_->engine->Reserve(session, fingerprint, parts, ttl));
          for (const auto& result : results) {
            v1::PartResult* to = response->add_results();
            wire::ToProto(result.status(), to);
            if (result.ok()) to->set_reservation_id(*result);
          }
          return OkStatus();
        });
    // Hashes every byte of the parts.
    Add<v1::CommitRequest, v1::CommitResponse>(
        server, Method::kCommit, Where::kExecutor,
        [this](Call& call, const v1::CommitRequest& request,
               v1::CommitResponse* response) -> Status {
          CAIRN_ASSIGN_OR_RETURN(const SessionId session,
                                 rpc_->sessions->Find(request.session_id()));
          const std::span<const uint64_t> ids = Ids(request.reservation_ids());
          CAIRN_RETURN_IF_ERROR(CheckIds(ids, 1, kMaxPartsPerCall, "reservation_ids"));
          CAIRN_ASSIGN_OR_RETURN(const auto results,
                                 rpc_->engine->Commit(session, ids, call.trace()));
          for (const Status& result : results) wire::ToProto(result, response->add_results());
          return OkStatus();
        });
    Add<v1::AbortRequest, v1::AbortResponse>(
        server, Method::kAbort, Where::kInline,
        [this](Call&, const v1::AbortRequest& request, v1::AbortResponse*) -> Status {
          CAIRN_ASSIGN_OR_RETURN(const SessionId session,
                                 rpc_->sessions->Find(request.session_id()));
          CAIRN_RETURN_IF_ERROR(
              CheckIds(Ids(request.reservation_ids()), 0, kMaxIdsPerCall, "reservation_ids"));
          return rpc_->engine->Abort(session, Ids(request.reservation_ids()));
        });
    Add<v1::FlushRequest, v1::FlushResponse>(
        server, Method::kFlush, Where::kFlushExecutor,
        [this](Call& call, const v1::FlushRequest&, v1::FlushResponse* response) -> Status {
          CAIRN_RETURN_IF_ERROR(rpc_->engine->Flush(call.Deadline(kFlushLimit)));
          response->set_unflushed_bytes(rpc_->engine->GetStats().unflushed_bytes);
          return OkStatus();
        });
  }

  RpcContext* const rpc_;
  Lookups lookups_;
  StreamSet<SessionStream> sessions_;
  StreamSet<WatchStream> watches_;
  FetchCalls fetches_;
};

}  // namespace

std::unique_ptr<CacheService> CacheService::Create(RpcContext* rpc, metrics::Registry* registry) {
  return std::make_unique<Service>(rpc, registry);
}

}  // namespace cairn::cache
