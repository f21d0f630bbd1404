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

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;

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

using Base = v1::Cache::WithRawCallbackMethod_Fetch<v1::Cache::WithRawCallbackMethod_Push<v1::Cache::CallbackService>>;

class Service final : public CacheService, public Base {
 public:
  Service(RpcContext* rpc, metrics::Registry* registry)
      : rpc_(rpc), lookups_(rpc->engine, registry), fetches_(rpc->options.send_bytes, &lookups_) {}

  grpc::Service* grpc() override { return static_cast<Base*>(this); }

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

  // The streams.
  grpc::ServerWriteReactor<v1::SessionEvent>* OpenSession(CallbackServerContext* context,
                                                          const v1::OpenSessionRequest* request) override {
    return SessionStream::Open(rpc_, &sessions_, context, *request).get();
  }
  grpc::ServerWriteReactor<v1::Event>* Watch(CallbackServerContext* context, const v1::WatchRequest* request) override {
    return WatchStream::Open(rpc_, &watches_, context, *request).get();
  }
  grpc::ServerWriteReactor<grpc::ByteBuffer>* Fetch(CallbackServerContext* context,
                                                    const grpc::ByteBuffer* request) override {
    return FetchCall::Start(rpc_, &fetches_, context, *request);
  }
  grpc::ServerReadReactor<grpc::ByteBuffer>* Push(CallbackServerContext* context,
                                                  grpc::ByteBuffer* response) override {
    return new PushCall(rpc_, context, response);
  }

  // The unary calls. Inline: what needs neither disk nor long copies.
  ServerUnaryReactor* OpenNamespace(CallbackServerContext* context, const v1::OpenNamespaceRequest* request,
                                    v1::OpenNamespaceResponse* response) override {
    return Unary(rpc_, Method::kOpenNamespace, context, request, response, Where::kExecutor, [=, this](Call&) -> Status {
      if (!request->has_spec()) return InvalidArgument("spec: missing, expected a namespace");
      CAIRN_ASSIGN_OR_RETURN(const NamespaceSpec spec, wire::FromProto(request->spec()));
      CAIRN_ASSIGN_OR_RETURN(const NamespaceOpened opened, rpc_->engine->OpenNamespace(spec, request->strict()));
      response->set_fingerprint(std::string(opened.fingerprint.View()));
      response->set_created(opened.created);
      for (const auto& similar : opened.differs) {
        wire::ToProto(similar.difference, similar.stored_blocks, response->add_differs());
      }
      return OkStatus();
    });
  }

  ServerUnaryReactor* Match(CallbackServerContext* context, const v1::MatchRequest* request,
                            v1::MatchResponse* response) override {
    return Unary(rpc_, Method::kMatch, context, request, response, Where::kInline, [=, this](Call& call) -> Status {
      CAIRN_ASSIGN_OR_RETURN(const SessionId session, rpc_->sessions->Find(request->session_id()));
      CAIRN_ASSIGN_OR_RETURN(const MatchResult result,
                             lookups_.Match({.session = session,
                                             .fingerprint = request->fingerprint(),
                                             .keys = request->keys(),
                                             .lease_ttl_ms = request->lease_ttl_ms(),
                                             .lease = !request->no_lease(),
                                             .prefill_tokens_per_second = request->prefill_tokens_per_second(),
                                             .trace = call.trace()}));
      ToProto(result, response);
      return OkStatus();
    });
  }

  ServerUnaryReactor* Prefetch(CallbackServerContext* context, const v1::PrefetchRequest* request,
                               v1::PrefetchResponse* response) override {
    return Unary(rpc_, Method::kPrefetch, context, request, response, Where::kInline, [=, this](Call&) -> Status {
      CAIRN_ASSIGN_OR_RETURN(const SessionId session, rpc_->sessions->Find(request->session_id()));
      CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint, Digest::FromBytes(request->fingerprint(), "fingerprint"));
      CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, wire::KeysFromProto(request->keys()));
      CAIRN_ASSIGN_OR_RETURN(const PrefetchResult result,
                             rpc_->engine->Prefetch({.session = session,
                                                     .fingerprint = fingerprint,
                                                     .keys = keys,
                                                     .needed_in = std::chrono::milliseconds(request->needed_in_ms())}));
      response->set_present_blocks(result.present_blocks);
      response->set_queued_blocks(result.queued_blocks);
      response->set_absent_blocks(result.absent_blocks);
      response->set_refused_blocks(result.refused_blocks);
      response->set_estimated_seconds(result.estimated_seconds);
      return OkStatus();
    });
  }

  ServerUnaryReactor* Exists(CallbackServerContext* context, const v1::ExistsRequest* request,
                             v1::ExistsResponse* response) override {
    return Unary(rpc_, Method::kExists, context, request, response, Where::kInline, [=, this](Call&) -> Status {
      CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint, Digest::FromBytes(request->fingerprint(), "fingerprint"));
      CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, wire::KeysFromProto(request->keys()));
      CAIRN_ASSIGN_OR_RETURN(const auto tiers, rpc_->engine->Exists(fingerprint, keys));
      response->mutable_tiers()->Reserve(static_cast<int>(tiers.size()));
      for (const auto& tier : tiers) response->add_tiers(wire::TierToProto(tier));
      return OkStatus();
    });
  }

  ServerUnaryReactor* Reserve(CallbackServerContext* context, const v1::ReserveRequest* request,
                              v1::ReserveResponse* response) override {
    return Unary(rpc_, Method::kReserve, context, request, response, Where::kInline, [=, this](Call&) -> Status {
      CAIRN_ASSIGN_OR_RETURN(const SessionId session, rpc_->sessions->Find(request->session_id()));
      CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint, Digest::FromBytes(request->fingerprint(), "fingerprint"));
      if (request->parts_size() < 1 || static_cast<size_t>(request->parts_size()) > kMaxPartsPerCall) {
        return InvalidArgument("parts: got {} of them, expected 1 to {}", request->parts_size(), kMaxPartsPerCall);
      }
      CAIRN_ASSIGN_OR_RETURN(const Duration ttl, ToTtl(request->ttl_ms(), "ttl_ms"));
      CAIRN_ASSIGN_OR_RETURN(const auto spec, lookups_.specs().Find(fingerprint));
      CAIRN_ASSIGN_OR_RETURN(const auto parts, ToParts(*request, spec->layout));
      CAIRN_ASSIGN_OR_RETURN(const auto results, rpc_->engine->Reserve(session, fingerprint, parts, ttl));
      for (const auto& result : results) {
        v1::PartResult* to = response->add_results();
        wire::ToProto(result.status(), to);
        if (result.ok()) to->set_reservation_id(*result);
      }
      return OkStatus();
    });
  }

  // Hashes every byte of the parts.
  ServerUnaryReactor* Commit(CallbackServerContext* context, const v1::CommitRequest* request,
                             v1::CommitResponse* response) override {
    return Unary(rpc_, Method::kCommit, context, request, response, Where::kExecutor, [=, this](Call& call) -> Status {
      CAIRN_ASSIGN_OR_RETURN(const SessionId session, rpc_->sessions->Find(request->session_id()));
      const std::span<const uint64_t> ids = Ids(request->reservation_ids());
      CAIRN_RETURN_IF_ERROR(CheckIds(ids, 1, kMaxPartsPerCall, "reservation_ids"));
      CAIRN_ASSIGN_OR_RETURN(const auto results, rpc_->engine->Commit(session, ids, call.trace()));
      for (const Status& result : results) wire::ToProto(result, response->add_results());
      return OkStatus();
    });
  }

  ServerUnaryReactor* Abort(CallbackServerContext* context, const v1::AbortRequest* request,
                            v1::AbortResponse* response) override {
    return Unary(rpc_, Method::kAbort, context, request, response, Where::kInline, [=, this](Call&) -> Status {
      CAIRN_ASSIGN_OR_RETURN(const SessionId session, rpc_->sessions->Find(request->session_id()));
      CAIRN_RETURN_IF_ERROR(CheckIds(Ids(request->reservation_ids()), 0, kMaxIdsPerCall, "reservation_ids"));
      return rpc_->engine->Abort(session, Ids(request->reservation_ids()));
    });
  }

  ServerUnaryReactor* Release(CallbackServerContext* context, const v1::ReleaseRequest* request,
                              v1::ReleaseResponse* response) override {
    return Unary(rpc_, Method::kRelease, context, request, response, Where::kInline, [=, this](Call&) -> Status {
      CAIRN_ASSIGN_OR_RETURN(const SessionId session, rpc_->sessions->Find(request->session_id()));
      CAIRN_RETURN_IF_ERROR(CheckIds(Ids(request->lease_ids()), 0, kMaxIdsPerCall, "lease_ids"));
      return rpc_->engine->Release(session, Ids(request->lease_ids()));
    });
  }

  ServerUnaryReactor* RenewLease(CallbackServerContext* context, const v1::RenewLeaseRequest* request,
                                 v1::RenewLeaseResponse* response) override {
    return Unary(rpc_, Method::kRenewLease, context, request, response, Where::kInline, [=, this](Call&) -> Status {
      CAIRN_ASSIGN_OR_RETURN(const SessionId session, rpc_->sessions->Find(request->session_id()));
      CAIRN_RETURN_IF_ERROR(CheckId(request->lease_id(), "lease_id"));
      CAIRN_ASSIGN_OR_RETURN(const Duration ttl, ToTtl(request->ttl_ms(), "ttl_ms"));
      CAIRN_ASSIGN_OR_RETURN(const Duration granted, rpc_->engine->RenewLease(session, request->lease_id(), ttl));
      response->set_ttl_ms(ToMs(granted));
      return OkStatus();
    });
  }

  ServerUnaryReactor* Flush(CallbackServerContext* context, const v1::FlushRequest* request,
                            v1::FlushResponse* response) override {
    return Unary(rpc_, Method::kFlush, context, request, response, Where::kFlushExecutor, [=, this](Call& call) -> Status {
      CAIRN_RETURN_IF_ERROR(rpc_->engine->Flush(call.Deadline(kFlushLimit)));
      response->set_unflushed_bytes(rpc_->engine->GetStats().unflushed_bytes);
      return OkStatus();
    });
  }

  ServerUnaryReactor* Stat(CallbackServerContext* context, const v1::StatRequest* request,
                           v1::StatResponse* response) override {
    return Unary(rpc_, Method::kStat, context, request, response, Where::kInline, [=, this](Call&) -> Status {
      ToProto(rpc_->engine->GetStats(), rpc_->draining.load(), response);
      return OkStatus();
    });
  }

 private:
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
