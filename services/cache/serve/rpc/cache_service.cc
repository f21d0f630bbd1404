#include "services/cache/serve/rpc/cache_service.h"

#include "cairn/v1/admin.grpc.pb.h"
#include "cairn/v1/cache.grpc.pb.h"
#include "cairn/v1/cluster.grpc.pb.h"
#include "common/config/config.h"
#include "common/keys/call_limits.h"
#include "common/net/credentials.h"
#include "common/rpc/deferred_call.h"
#include "common/rpc/status.h"
#include "common/rpc/stream_set.h"
#include "common/rpc/unary_call.h"
#include "protocol/wire/convert.h"
#include "protocol/wire/node_statistics.h"
#include "services/cache/serve/rpc/fetch_call.h"
#include "services/cache/serve/rpc/lookup.h"
#include "services/cache/serve/rpc/push_stream.h"
#include "services/cache/serve/rpc/session_stream.h"
#include "services/cache/serve/rpc/watch_stream.h"

namespace cairn::cache {
namespace {

constexpr Duration kFlushLimit = std::chrono::minutes(5);

std::span<const uint64_t> Ids(const google::protobuf::RepeatedField<uint64_t>& ids) {
  return {ids.data(), static_cast<size_t>(ids.size())};
}

void StatToProto(const EngineStats& stats, bool draining, v1::StatResponse* out) {
  wire::ToProto(stats, out);
  out->set_version(std::string(config::Version()));
  out->set_draining(draining);
  for (const TierKind kind : kTiersByRank) {
    if (stats.tiers[kind]) wire::ToProto(*stats.tiers[kind], out->add_tiers());
  }
}

// The numbers of a node are of all its tenants, but for what it is.
void HideOthers(v1::StatResponse* stat) {
  v1::StatResponse shown;
  shown.set_node_id(stat->node_id());
  shown.set_node_epoch(stat->node_epoch());
  shown.set_version(stat->version());
  shown.set_uptime_seconds(stat->uptime_seconds());
  shown.set_draining(stat->draining());
  *stat = std::move(shown);
}

class Service final : public CacheService {
 public:
  Service(RpcContext* rpc, metrics::Registry* registry)
      : rpc_(rpc), lookups_(rpc->engine, registry), fetches_(rpc->options.send_bytes, &lookups_) {}

  void AddTo(rpc::CallServer* server) override {
    AddStreams(server);
    // On the poller: what needs neither disk nor long copies.
    Executor* const on_the_poller = nullptr;
    rpc::AddDeferred<v1::MatchRequest, v1::MatchResponse>(
        server, rpc_, kService, "Match", on_the_poller,
        [this](MatchCall& call, const v1::MatchRequest& request) { Match(call, request); });
    Add(server, "Prefetch", on_the_poller, &Service::Prefetch);
    Add(server, "Exists", on_the_poller, &Service::Exists);
    Add(server, "Release", on_the_poller, &Service::Release);
    Add(server, "RenewLease", on_the_poller, &Service::RenewLease);
    Add(server, "OpenNamespace", rpc_->executor, &Service::OpenNamespace);
    Add(server, "Stat", on_the_poller, &Service::Stat);
    Add(server, "Reserve", on_the_poller, &Service::Reserve);
    Add(server, "Commit", rpc_->executor, &Service::Commit);  // Hashes every byte of the parts.
    Add(server, "Abort", on_the_poller, &Service::Abort);
    AddFlush(server);
  }

  void Tick() override {
    for (const auto& session : sessions_.All()) session->Tick();
    for (const auto& watch : watches_.All()) watch->Tick();
    for (const auto& fetch : fetches_.open.All()) fetch->Tick();
    for (const auto& push : pushes_.All()) push->Tick();
    if (rpc_->memory != nullptr) {
      // Fetches wait for their room: only requests are refused.
      const rpc::RequestBytes* const requests = rpc_->request_bytes;
      rpc_->memory->Measure(MemoryItem::kRpc,
                            fetches_.budget->used() + (requests == nullptr ? 0 : requests->used()),
                            requests == nullptr ? 0 : requests->refusals());
    }
  }
  void AnnounceDrain() override {
    for (const auto& session : sessions_.All()) session->Tick();
  }
  void EndStreams() override {
    const grpc::Status status = rpc::ToGrpc(rpc::ShuttingDown(*rpc_));
    for (const auto& session : sessions_.All()) session->End(status);
    for (const auto& watch : watches_.All()) watch->End(status);
  }

 private:
  using MatchCall = rpc::DeferredCall<v1::MatchRequest, v1::MatchResponse>;
  using FlushCall = rpc::DeferredCall<v1::FlushRequest, v1::FlushResponse>;
  static constexpr std::string_view kService = v1::Cache::service_full_name();
  // A match over pools looks at the blocks of all its pools, and one of more keys would hold the
  // poller for milliseconds.
  static constexpr size_t kPoolKeysOnThePoller = 8192;

  template <typename Request, typename Response>
  void Add(rpc::CallServer* server, std::string_view method, Executor* executor,
           Status (Service::*handler)(rpc::Call&, const Request&, Response*)) {
    rpc::AddUnary<Request, Response>(
        server, rpc_, kService, method, executor,
        [this, handler](rpc::Call& call, const Request& request, Response* response) {
          return (this->*handler)(call, request, response);
        });
  }

  // Flushes wait for each other, so a connection gets a share of the places in their queue.
  void AddFlush(rpc::CallServer* server) {
    rpc::AddDeferred<v1::FlushRequest, v1::FlushResponse>(
        server, rpc_, kService, "Flush", nullptr, [this](FlushCall& call, const auto&) {
          auto place = call.call().TakePlaceAt(&flush_places_, "flushes", "at most 64 at a time");
          if (!place.ok()) return call.Answer(place.status(), {});
          // A function that can be copied cannot own what can only be moved.
          auto shared = std::make_shared<Gate::Pass>(*std::move(place));
          const Status posted = rpc_->flush_executor->Post([this, &call, shared] { Flush(call); });
          if (posted.ok()) return;
          call.call().Rejected(rpc::Rejection::kOverload);
          call.Answer(posted, {});
        });
  }
  void AddStreams(rpc::CallServer* server) {
    rpc::CallMetrics* const metrics = rpc_->metrics;
    rpc::Method* const open = metrics->Add(kService, "OpenSession", rpc::Life::kOpenEnded);
    server->Add(
        open->path(), [this, open](std::unique_ptr<rpc::RawCall> call, const auto& request) {
          SessionStream::Open(rpc_, open, {&sessions_, &session_places_}, std::move(call), request);
        });
    rpc::Method* const watch = metrics->Add(kService, "Watch", rpc::Life::kOpenEnded);
    server->Add(
        watch->path(), [this, watch](std::unique_ptr<rpc::RawCall> call, const auto& request) {
          WatchStream::Open(rpc_, watch, {&watches_, &watch_places_}, std::move(call), request);
        });
    rpc::Method* const fetch = metrics->Add(kService, "Fetch");
    server->Add(fetch->path(),
                [this, fetch](std::unique_ptr<rpc::RawCall> call, const auto& request) {
                  FetchCall::Start(rpc_, fetch, &fetches_, std::move(call), request);
                });
    rpc::Method* const push = metrics->Add(kService, "Push");
    server->AddStream(push->path(), [this, push](std::unique_ptr<rpc::RawCall> call) {
      PushCall::Start(rpc_, push, &pushes_, std::move(call));
    });
  }

  void Match(MatchCall& call, const v1::MatchRequest& request) {
    if (!request.has_joint() || request.keys().size() <= kPoolKeysOnThePoller * sizeof(BlockKey)) {
      return MatchHere(call, request);
    }
    // The request is the call's, which lives until its answer.
    const Status posted =
        rpc_->executor->Post([this, &call, &request] { MatchHere(call, request); });
    if (posted.ok()) return;
    call.call().Rejected(rpc::Rejection::kOverload);
    call.Answer(posted, {});
  }
  void MatchHere(MatchCall& call, const v1::MatchRequest& request) {
    const Result<SessionId> session = rpc_->sessions->Find(request.session_id(), call.call());
    if (!session.ok()) return call.Answer(session.status(), {});
    if (request.announce() && call.call().caller() != nullptr) {
      // Others wait for the blocks of whoever announces.
      const auto fingerprint = Digest::FromBytes(request.fingerprint(), "fingerprint");
      const Status writes =
          fingerprint.ok() ? CheckNamespace(*rpc_, call.call(), *fingerprint, auth::Role::kWriter)
                           : fingerprint.status();
      if (!writes.ok()) return call.Answer(writes, {});
    }
    lookups_.Match(call.call(),
                   {.session = *session,
                    .fingerprint = request.fingerprint(),
                    .keys = request.keys(),
                    .lease_ttl_ms = request.lease_ttl_ms(),
                    .lease = !request.no_lease(),
                    .prefill_tokens_per_second = request.prefill_tokens_per_second(),
                    .trace = call.call().trace(),
                    .holders = {request.holders().begin(), request.holders().end()},
                    .next = request.next(),
                    .wait_ms = request.wait_ms(),
                    .wait_blocks = request.wait_blocks(),
                    .announce = request.announce(),
                    .joint = request.has_joint() ? &request.joint() : nullptr},
                   [this, &call, session = *session](Result<MatchResult> result, bool waited) {
                     AnswerMatch(call, session, std::move(result), waited);
                   });
  }
  void AnswerMatch(MatchCall& call, SessionId session, Result<MatchResult> result, bool waited) {
    if (!result.ok()) return call.Answer(result.status(), {});
    // Nobody would release the lease of a client that went away while its call waited.
    if (waited && call.call().cancelled()) {
      if (result->lease) (void)rpc_->engine->Release(session, {&*result->lease, 1});
      return call.Answer(rpc::Gone(), {});
    }
    v1::MatchResponse response;
    ToProto(*result, &response);
    call.Answer(OkStatus(), response);
  }
  Status Prefetch(rpc::Call& call, const v1::PrefetchRequest& request,
                  v1::PrefetchResponse* response) {
    CAIRN_ASSIGN_OR_RETURN(const SessionId session,
                           rpc_->sessions->Find(request.session_id(), call));
    CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint,
                           Digest::FromBytes(request.fingerprint(), "fingerprint"));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, wire::KeysFromProto(request.keys()));
    CAIRN_ASSIGN_OR_RETURN(
        const PrefetchOutcome result,
        rpc_->engine->Prefetch({.session = session,
                                .fingerprint = fingerprint,
                                .keys = keys,
                                .needed_in = std::chrono::milliseconds(request.needed_in_ms())}));
    response->set_present_blocks(result.present_blocks);
    response->set_queued_blocks(result.queued_blocks);
    response->set_absent_blocks(result.absent_blocks);
    response->set_refused_blocks(result.refused_blocks);
    response->set_estimated_seconds(result.estimated_seconds);
    return OkStatus();
  }
  Status Exists(rpc::Call& call, const v1::ExistsRequest& request, v1::ExistsResponse* response) {
    CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint,
                           Digest::FromBytes(request.fingerprint(), "fingerprint"));
    CAIRN_ASSIGN_OR_RETURN(const std::vector<BlockKey> keys, wire::KeysFromProto(request.keys()));
    CAIRN_RETURN_IF_ERROR(CheckNamespace(*rpc_, call, fingerprint, auth::Role::kReader));
    CAIRN_ASSIGN_OR_RETURN(const auto tiers, rpc_->engine->Exists(fingerprint, keys));
    response->mutable_tiers()->Reserve(static_cast<int>(tiers.size()));
    for (const auto& tier : tiers) response->add_tiers(wire::TierToProto(tier));
    return OkStatus();
  }
  Status Release(rpc::Call& call, const v1::ReleaseRequest& request, v1::ReleaseResponse*) {
    CAIRN_ASSIGN_OR_RETURN(const SessionId session,
                           rpc_->sessions->Find(request.session_id(), call));
    CAIRN_RETURN_IF_ERROR(CheckIds(Ids(request.lease_ids()), 0, kMaxIdsPerCall, "lease_ids"));
    return rpc_->engine->Release(session, Ids(request.lease_ids()));
  }
  Status RenewLease(rpc::Call& call, const v1::RenewLeaseRequest& request,
                    v1::RenewLeaseResponse* response) {
    CAIRN_ASSIGN_OR_RETURN(const SessionId session,
                           rpc_->sessions->Find(request.session_id(), call));
    CAIRN_RETURN_IF_ERROR(CheckId(request.lease_id(), "lease_id"));
    CAIRN_ASSIGN_OR_RETURN(const Duration ttl, ToTtl(request.ttl_ms(), "ttl_ms"));
    CAIRN_ASSIGN_OR_RETURN(const Duration granted,
                           rpc_->engine->RenewLease(session, request.lease_id(), ttl));
    response->set_ttl_ms(ToMs(granted));
    return OkStatus();
  }
  Status OpenNamespace(rpc::Call& call, const v1::OpenNamespaceRequest& request,
                       v1::OpenNamespaceResponse* response) {
    if (!request.has_spec()) return InvalidArgument("spec: missing, expected a namespace");
    CAIRN_ASSIGN_OR_RETURN(const NamespaceSpec spec, wire::FromProto(request.spec()));
    // The life of blocks is their writers' affair.
    CAIRN_RETURN_IF_ERROR(call.CheckAllowed(
        request.block_life_ms() == 0 ? auth::Role::kReader : auth::Role::kWriter, spec.tenant));
    // More than any life that the engine takes, and no more than fits.
    const uint64_t life_ms = std::min<uint64_t>(request.block_life_ms(), uint64_t{1} << 40);
    // A shorter life hides blocks, as a drop does, and needs the same role.
    const bool admin = call.caller() != nullptr
                           ? call.caller()->rights.May(auth::Role::kAdmin, spec.tenant)
                           : net::CheckAdmin(net::CallerOf(call.grpc()), rpc_->options.admin).ok();
    CAIRN_ASSIGN_OR_RETURN(
        const OpenedNamespace opened,
        rpc_->engine->OpenNamespace(spec, request.strict(), std::chrono::milliseconds(life_ms),
                                    admin ? LifeChange::kAny : LifeChange::kLonger));
    response->set_fingerprint(std::string(opened.fingerprint.View()));
    response->set_created(opened.created);
    for (const auto& similar : opened.differs) {
      wire::ToProto(similar.difference, similar.stored_blocks, response->add_differs());
    }
    return OkStatus();
  }
  Status Stat(rpc::Call& call, const v1::StatRequest&, v1::StatResponse* response) {
    StatToProto(rpc_->engine->GetStats(), rpc_->draining.load(), response);
    if (!call.AllowsAll(auth::Role::kReader) && !call.AllowsAll(auth::Role::kOperator)) {
      HideOthers(response);
    }
    return OkStatus();
  }
  Status Reserve(rpc::Call& call, const v1::ReserveRequest& request,
                 v1::ReserveResponse* response) {
    CAIRN_ASSIGN_OR_RETURN(const SessionId session,
                           rpc_->sessions->Find(request.session_id(), call));
    CAIRN_ASSIGN_OR_RETURN(const Digest fingerprint,
                           Digest::FromBytes(request.fingerprint(), "fingerprint"));
    if (request.parts_size() < 1 || static_cast<size_t>(request.parts_size()) > kMaxPartsPerCall) {
      return InvalidArgument("parts: got {} of them, expected 1 to {}", request.parts_size(),
                             kMaxPartsPerCall);
    }
    CAIRN_ASSIGN_OR_RETURN(const Duration ttl, ToTtl(request.ttl_ms(), "ttl_ms"));
    CAIRN_RETURN_IF_ERROR(CheckNamespace(*rpc_, call, fingerprint, auth::Role::kWriter));
    CAIRN_ASSIGN_OR_RETURN(const auto spec, rpc_->engine->GetNamespaceFor(session, fingerprint));
    CAIRN_ASSIGN_OR_RETURN(const auto parts, ToParts(request, spec->layout));
    CAIRN_ASSIGN_OR_RETURN(const auto results,
                           rpc_->engine->Reserve(session, fingerprint, parts, ttl));
    for (const auto& result : results) {
      v1::PartResult* to = response->add_results();
      wire::ToProto(result.status(), to);
      if (result.ok()) to->set_reservation_id(*result);
    }
    return OkStatus();
  }
  Status Commit(rpc::Call& call, const v1::CommitRequest& request, v1::CommitResponse* response) {
    CAIRN_ASSIGN_OR_RETURN(const SessionId session,
                           rpc_->sessions->Find(request.session_id(), call));
    const std::span<const uint64_t> ids = Ids(request.reservation_ids());
    CAIRN_RETURN_IF_ERROR(CheckIds(ids, 1, kMaxPartsPerCall, "reservation_ids"));
    CAIRN_ASSIGN_OR_RETURN(const auto results, rpc_->engine->Commit(session, ids, call.trace()));
    for (const Status& result : results) wire::ToProto(result, response->add_results());
    return OkStatus();
  }
  Status Abort(rpc::Call& call, const v1::AbortRequest& request, v1::AbortResponse*) {
    CAIRN_ASSIGN_OR_RETURN(const SessionId session,
                           rpc_->sessions->Find(request.session_id(), call));
    CAIRN_RETURN_IF_ERROR(
        CheckIds(Ids(request.reservation_ids()), 0, kMaxIdsPerCall, "reservation_ids"));
    return rpc_->engine->Abort(session, Ids(request.reservation_ids()));
  }
  void Flush(FlushCall& call) {
    if (call.call().cancelled()) return call.Answer(rpc::Gone(), {});
    const Status flushed =
        rpc_->engine->Flush(FlushRequest{.deadline = call.call().Deadline(kFlushLimit),
                                         .cancelled = [&call] { return call.call().cancelled(); }});
    v1::FlushResponse response;
    if (flushed.ok()) response.set_unflushed_bytes(rpc_->engine->GetStats().unflushed_bytes);
    call.Answer(flushed, response);
  }

  RpcContext* const rpc_;
  Gate session_places_{rpc_->options.max_sessions}, watch_places_{rpc_->options.max_watches},
      flush_places_{rpc_->options.max_flushes};
  Lookups lookups_;
  rpc::StreamSet<SessionStream> sessions_;
  rpc::StreamSet<WatchStream> watches_;
  FetchCalls fetches_;
  rpc::StreamSet<PushCall> pushes_;
};

}  // namespace

std::vector<std::string> ServiceNames() {
  return {v1::Cache::service_full_name(), v1::Admin::service_full_name(),
          v1::Cluster::service_full_name()};
}

std::unique_ptr<CacheService> CacheService::Create(RpcContext* rpc, metrics::Registry* registry) {
  return std::make_unique<Service>(rpc, registry);
}

}  // namespace cairn::cache
