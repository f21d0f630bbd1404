#include "clients/cpp/src/grpc/grpc_cache_client.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "clients/cpp/src/checks.h"
#include "clients/cpp/src/grpc/channel.h"
#include "clients/cpp/src/grpc/event_stream.h"
#include "clients/cpp/src/grpc/push.h"
#include "common/rpc/status.h"
#include "protocol/wire/convert.h"
#include "protocol/wire/node_statistics.h"

namespace cairn::client {
namespace {

TimePoint After(Duration d) { return std::chrono::steady_clock::now() + d; }

void Add(std::atomic<uint64_t>& counter, uint64_t n) {
  counter.fetch_add(n, std::memory_order_relaxed);
}

std::string Bytes(const Digest& digest) { return std::string(digest.View()); }

uint32_t Millis(Duration d) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 0, 600'000));
}

// Wrong slices of a fetch that are asked for once more. More are no accident.
constexpr size_t kMaxRetries = 64;

// Two cores gain up to here; each costs the node some KiB once it has been used.
constexpr size_t kDataConnections = 4;

// Of in-place pushes over gRPC: some batches of a worker.
constexpr size_t kIdleBufferBytes = 32u << 20;

NodeStats FromProto(const v1::StatResponse& in) {
  NodeStats out;
  wire::FromProto(in, &out);
  out.version = in.version();
  out.draining = in.draining();
  for (const v1::TierStat& tier : in.tiers()) {
    if (const auto known = wire::FromProto(tier)) out.tiers.push_back(*known);
  }
  return out;
}

}  // namespace

// Where leases go back to. They hold it weakly, but one may be inside while the client ends: hence
// Close.
class GrpcCacheClient::LeaseReturn final : public LeaseOwner {
 public:
  LeaseReturn(ReleaseQueue* queue, local::LocalPath* local) : queue_(queue), local_(local) {}
  void ReleaseLease(const LeaseInfo& lease) override {
    MutexLock lock(mu_);
    if (queue_ == nullptr || local_->Drop(lease.session, lease.id)) return;
    queue_->ReleaseLease(lease.session, lease.id);
  }
  // The session ends with the client, and all its leases with it.
  void Close() {
    MutexLock lock(mu_);
    queue_ = nullptr;
  }

 private:
  Mutex mu_;
  ReleaseQueue* queue_ ABSL_GUARDED_BY(mu_);
  local::LocalPath* const local_;
};

GrpcCacheClient::GrpcCacheClient(const ConnectOptions& options,
                                 std::shared_ptr<grpc::Channel> control,
                                 std::shared_ptr<grpc::Channel> events,
                                 std::vector<std::shared_ptr<grpc::Channel>> data)
    : stub_(v1::Cache::NewStub(control)),
      events_(std::make_unique<grpc::GenericStub>(std::move(events))),
      data_(std::move(data)),
      breaker_(options.breaker, &SteadyClock::Get()),
      releases_(stub_.get()),
      local_({.choice = options.path,
              .client = options.client_name,
              .spin = options.spin.value_or(Duration(-1))}),
      buffers_(std::make_shared<PartBuffers>(kIdleBufferBytes)),
      leases_(std::make_shared<LeaseReturn>(&releases_, &local_)),
      session_(
          std::move(control),
          {.client_name = options.client_name,
           .max_backoff = options.max_reconnect_backoff,
           // Clients that were started together must not come back together.
           .seed =
               std::hash<const void*>()(this) ^
               static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count())},
          [this] {
            breaker_.Reset();
            // The old session's, if there was one.
            local_.CheckAlive();
          },
          [this] { releases_.Look(); }) {}

GrpcCacheClient::~GrpcCacheClient() { leases_->Close(); }

Status GrpcCacheClient::Count(Status status) {
  const auto code = static_cast<size_t>(status.code());
  Add(totals_.by_code[code < totals_.by_code.size() ? code
                                                    : static_cast<size_t>(StatusCode::kUnknown)],
      1);
  return status;
}

Lease GrpcCacheClient::NewLease(LeaseInfo info) { return {leases_, std::move(info)}; }

Result<OpenedNamespace> GrpcCacheClient::OpenNamespace(const NamespaceSpec& spec,
                                                       const CallOptions& options) {
  CAIRN_RETURN_IF_ERROR(Validate(spec));
  CAIRN_RETURN_IF_ERROR(session_.Remember(spec));
  local_.Remember(Fingerprint(spec), spec.tenant);
  const TimePoint deadline = After(options.deadline);
  OpenedNamespace opened;
  const Status status = Guarded(deadline, [&](const Session::Current& session) -> Status {
    grpc::ClientContext context;
    Prepare(context, deadline, options.trace);
    v1::OpenNamespaceRequest request;
    v1::OpenNamespaceResponse response;
    wire::ToProto(spec, request.mutable_spec());
    CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(stub_->OpenNamespace(&context, request, &response)));
    CAIRN_ASSIGN_OR_RETURN(opened.fingerprint,
                           Digest::FromBytes(response.fingerprint(), "fingerprint"));
    if (opened.fingerprint != Fingerprint(spec)) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "node and client derive different fingerprints: {} and {}",
                    opened.fingerprint.Hex(), Fingerprint(spec).Hex());
    }
    // The session may have been first, if it opened after the namespace was remembered above.
    opened.created = session_.TakeCreated(opened.fingerprint) || response.created();
    for (const v1::FieldDifference& d : response.differs()) {
      opened.differs.push_back({{d.field(), d.stored(), d.requested()}, d.stored_blocks()});
    }
    // Connects, so that the first match does not pay for it.
    local_.Get(session.local, opened.fingerprint, deadline);
    return OkStatus();
  });
  CAIRN_RETURN_IF_ERROR(status);
  return opened;
}

Result<MatchOutcome> GrpcCacheClient::ToOutcome(const v1::MatchResponse& response, size_t asked) {
  if (response.matched_blocks() > asked) {
    return Errorf(StatusCode::kInternal, "match: the node matched {} of {} blocks",
                  response.matched_blocks(), asked);
  }
  MatchOutcome outcome;
  outcome.matched_blocks = response.matched_blocks();
  outcome.miss_reason = wire::MissReasonFromProto(response.miss_reason());
  outcome.bytes = response.bytes();
  outcome.estimated_fetch_seconds = response.estimated_fetch_seconds();
  for (const v1::TierRun& run : response.tiers()) {
    const std::optional<TierKind> tier = wire::TierFromProto(run.tier());
    outcome.tiers.push_back(
        {tier.value_or(TierKind::kHost), run.blocks(), run.bytes(), run.seconds()});
  }
  return outcome;
}

Result<MatchOutcome> GrpcCacheClient::Match(const Digest& fingerprint,
                                            std::span<const BlockKey> keys,
                                            const MatchOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckKeys(keys));
  const TimePoint begin = std::chrono::steady_clock::now();
  const TimePoint deadline = begin + options.deadline;
  MatchOutcome outcome;
  const Status status = Guarded(deadline, [&](const Session::Current& session) -> Status {
    Status local;
    if (MatchLocal(session, fingerprint, keys, options, begin, &outcome, &local)) return local;
    grpc::ClientContext context;
    Prepare(context, deadline, options.trace);
    v1::MatchRequest request;
    v1::MatchResponse response;
    request.set_session_id(session.id);
    request.set_fingerprint(Bytes(fingerprint));
    request.set_keys(wire::KeysToProto(keys));
    request.set_lease_ttl_ms(Millis(options.lease_ttl));
    request.set_no_lease(!options.lease);
    request.set_prefill_tokens_per_second(options.prefill_tokens_per_second);
    CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(stub_->Match(&context, request, &response)));
    CAIRN_ASSIGN_OR_RETURN(outcome, ToOutcome(response, keys.size()));
    if (response.lease_id() != 0) {
      // From the beginning of the call: the node's clock for it started later.
      outcome.lease = Lease(
          leases_, {.id = response.lease_id(),
                    .session = session.id,
                    .fingerprint = fingerprint,
                    .blocks = response.matched_blocks(),
                    .expires_at = begin + std::chrono::milliseconds(response.lease_ttl_ms())});
    }
    return OkStatus();
  });
  if (status.code() == StatusCode::kNotFound) session_.ReopenNamespaces();
  CAIRN_RETURN_IF_ERROR(status);
  Add(totals_.matches, 1);
  Add(totals_.matched_blocks, outcome.matched_blocks);
  return outcome;
}

Status GrpcCacheClient::Fetch(const Lease& lease, const FetchRange& range, FetchSink& sink,
                              const FetchOptions& options) {
  if (!lease.held()) return InvalidArgument("field 'lease': got none, expected a lease from Match");
  CAIRN_RETURN_IF_ERROR(CheckRange(range, lease.info().blocks));
  if (!session_.IsCurrent(lease.info().session)) {
    return Count(
        Errorf(StatusCode::kNotFound, "the session of lease {} has ended", lease.info().id));
  }
  const TimePoint deadline = After(options.deadline);
  CircuitBreaker::Permit permit = breaker_.Ask();
  if (!permit) {
    return Count(Errorf(StatusCode::kUnavailable,
                        "the node failed repeatedly; it is not asked for a while"));
  }
  bool got_bytes = false;
  Status status;
  if (auto pin = local_.Find(lease.info().session, lease.info().id); pin != nullptr) {
    status = FetchLocal(std::move(pin), lease, range, sink, options, deadline, &got_bytes);
  } else {
    status = FetchRemote(lease, range, sink, options, deadline, &got_bytes);
  }
  if (std::chrono::steady_clock::now() >= deadline && got_bytes) {
    // The caller gave a healthy node too little time: that is not the node's failure.
    permit.Succeeded();
  } else if (CountsAsFailure(status.code())) {
    session_.Look();
    permit.Failed();
  } else if (status.code() != StatusCode::kCancelled) {
    permit.Succeeded();
  }
  Add(totals_.fetches, 1);
  return Count(status);
}

Status GrpcCacheClient::FetchRemote(const Lease& lease, const FetchRange& range, FetchSink& sink,
                                    const FetchOptions& options, TimePoint deadline,
                                    bool* got_bytes) {
  SliceAssembler assembler(
      &sink, {.blocks = lease.info().blocks, .verify = options.verify, .max_retries = kMaxRetries});
  const Status status = RunFetch(lease, range, assembler, options, deadline, got_bytes);
  CountFetched(assembler.counts());
  return status;
}

Result<MatchOutcome> GrpcCacheClient::Get(const Digest& fingerprint, std::span<const BlockKey> keys,
                                          const LayerRange& layers, FetchSink& sink,
                                          const MatchOptions& match, const FetchOptions& fetch) {
  CAIRN_RETURN_IF_ERROR(CheckKeys(keys));
  CAIRN_RETURN_IF_ERROR(CheckLayers(layers));
  const TimePoint begin = std::chrono::steady_clock::now();
  const TimePoint deadline = begin + fetch.deadline;
  MatchOptions leased = match;
  leased.lease = true;
  leased.lease_ttl = Duration(0);
  MatchOutcome outcome;
  bool local = false;
  bool refused = false;
  // With bytes delivered: the caller gave a healthy node too little time, which is not the node's
  // failure; or the session had ended, and the whole is not to be asked once more.
  Status late;
  const Status status =
      Guarded(begin + match.deadline, [&](const Session::Current& session) -> Status {
        Status answered;
        local = MatchLocal(session, fingerprint, keys, leased, begin, &outcome, &answered);
        if (local) return answered;
        Lookup lookup = {.asked = keys.size(),
                         .prefill_tokens_per_second = match.prefill_tokens_per_second,
                         .deadline = begin + match.deadline};
        SliceAssembler assembler(&sink, {.blocks = static_cast<uint32_t>(keys.size()),
                                         .verify = fetch.verify,
                                         .max_retries = kMaxRetries});
        bool got_bytes = false;
        const Status got = RunGet(session, fingerprint, keys, layers, lookup, assembler, fetch,
                                  deadline, &got_bytes);
        CountFetched(assembler.counts());
        Add(totals_.fetches, 1);
        // By a node of before, which knows no lookup; or by any, which then refuses the match too.
        refused = got.code() == StatusCode::kInvalidArgument && !lookup.answer;
        if (refused) return OkStatus();
        if (lookup.answer) outcome = std::move(*lookup.answer);
        if (got.ok() || !got_bytes) return got;
        if (got.code() != StatusCode::kNotFound && std::chrono::steady_clock::now() < deadline)
          return got;
        late = got;
        return OkStatus();
      });
  if (status.code() == StatusCode::kNotFound) session_.ReopenNamespaces();
  CAIRN_RETURN_IF_ERROR(status);
  if (refused) return CacheClient::Get(fingerprint, keys, layers, sink, match, fetch);
  Add(totals_.matches, 1);
  Add(totals_.matched_blocks, outcome.matched_blocks);
  if (local && outcome.matched_blocks > 0) {
    const Lease lease = std::move(outcome.lease);
    CAIRN_RETURN_IF_ERROR(
        Fetch(lease, {.layer_begin = layers.begin, .layer_end = layers.end}, sink, fetch));
  }
  if (!late.ok()) return Count(late);
  return outcome;
}

void GrpcCacheClient::CountFetched(const SliceAssembler::Counts& counts) {
  Add(totals_.fetched_slices, counts.slices);
  Add(totals_.corrupt_slices, counts.corrupt);
  for (size_t tier = 0; tier < kTierCount; ++tier) {
    Add(totals_.fetched_bytes[tier], counts.bytes[tier]);
    Add(totals_.fetched_by_path[static_cast<size_t>(Path::kGrpc)], counts.bytes[tier]);
  }
}

Result<std::vector<Status>> GrpcCacheClient::Push(const Digest& fingerprint,
                                                  std::span<const PartToPush> parts,
                                                  const PushOptions& options) {
  const TimePoint deadline = After(options.deadline);
  std::vector<Status> results;
  const Status status = Guarded(deadline, [&](const Session::Current& session) {
    results.clear();
    Status node;
    if (PushLocal(session, fingerprint, parts, deadline, &results, &node)) return node;
    const DataConnections::Use data = data_.Take();
    Pusher pusher({.control = stub_.get(), .data = data.stub(), .releases = &releases_}, session,
                  fingerprint, options, deadline);
    if (results.empty()) {
      results = pusher.Push(parts, &node);
      return node;
    }
    std::vector<PartToPush> left;
    std::vector<size_t> at;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].code() != StatusCode::kResourceExhausted) continue;
      left.push_back(parts[i]);
      at.push_back(i);
    }
    const std::vector<Status> pushed = pusher.Push(left, &node);
    for (size_t i = 0; i < pushed.size(); ++i) results[at[i]] = pushed[i];
    return node;
  });
  if (status.code() == StatusCode::kNotFound) session_.ReopenNamespaces();
  const bool any =
      std::any_of(results.begin(), results.end(), [](const Status& s) { return s.ok(); });
  if (!status.ok() && !any) return status;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i].ok()) continue;
    Add(totals_.pushed_parts, 1);
    Add(totals_.pushed_bytes, parts[i].bytes.size());
  }
  return results;
}

Result<PrefetchOutcome> GrpcCacheClient::Prefetch(const Digest& fingerprint,
                                                  std::span<const BlockKey> keys,
                                                  Duration needed_in, const CallOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckKeys(keys));
  const TimePoint deadline = After(options.deadline);
  PrefetchOutcome outcome;
  const Status status = Guarded(deadline, [&](const Session::Current& session) -> Status {
    grpc::ClientContext context;
    Prepare(context, deadline, options.trace);
    v1::PrefetchRequest request;
    v1::PrefetchResponse response;
    request.set_session_id(session.id);
    request.set_fingerprint(Bytes(fingerprint));
    request.set_keys(wire::KeysToProto(keys));
    request.set_needed_in_ms(Millis(needed_in));
    CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(stub_->Prefetch(&context, request, &response)));
    outcome = {.present_blocks = response.present_blocks(),
               .queued_blocks = response.queued_blocks(),
               .absent_blocks = response.absent_blocks(),
               .refused_blocks = response.refused_blocks(),
               .estimated_seconds = response.estimated_seconds()};
    return OkStatus();
  });
  CAIRN_RETURN_IF_ERROR(status);
  return outcome;
}

Result<std::vector<std::optional<TierKind>>> GrpcCacheClient::Exists(const Digest& fingerprint,
                                                                     std::span<const BlockKey> keys,
                                                                     const CallOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckKeys(keys));
  const TimePoint deadline = After(options.deadline);
  std::vector<std::optional<TierKind>> tiers;
  const Status status = Guarded(deadline, [&](const Session::Current& session) -> Status {
    Status local;
    if (ExistsLocal(session, fingerprint, keys, deadline, &tiers, &local)) return local;
    grpc::ClientContext context;
    Prepare(context, deadline, options.trace);
    v1::ExistsRequest request;
    v1::ExistsResponse response;
    request.set_fingerprint(Bytes(fingerprint));
    request.set_keys(wire::KeysToProto(keys));
    CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(stub_->Exists(&context, request, &response)));
    if (static_cast<size_t>(response.tiers_size()) != keys.size()) {
      return Errorf(StatusCode::kInternal, "exists: {} answers for {} keys", response.tiers_size(),
                    keys.size());
    }
    for (const int tier : response.tiers()) tiers.push_back(wire::TierFromProto(tier));
    return OkStatus();
  });
  CAIRN_RETURN_IF_ERROR(status);
  return tiers;
}

Result<Duration> GrpcCacheClient::RenewLease(const Lease& lease, Duration ttl,
                                             const CallOptions& options) {
  if (!lease.held()) return InvalidArgument("field 'lease': got none, expected a lease from Match");
  const TimePoint deadline = After(options.deadline);
  Duration granted{0};
  const Status status = Guarded(deadline, [&](const Session::Current& session) -> Status {
    if (session.id != lease.info().session) {
      return Errorf(StatusCode::kNotFound, "the session of lease {} has ended", lease.info().id);
    }
    Status local;
    if (RenewLocal(lease, ttl, deadline, &granted, &local)) return local;
    grpc::ClientContext context;
    Prepare(context, deadline, options.trace);
    v1::RenewLeaseRequest request;
    v1::RenewLeaseResponse response;
    request.set_session_id(session.id);
    request.set_lease_id(lease.info().id);
    request.set_ttl_ms(Millis(ttl));
    CAIRN_RETURN_IF_ERROR(rpc::FromGrpc(stub_->RenewLease(&context, request, &response)));
    granted = std::chrono::milliseconds(response.ttl_ms());
    return OkStatus();
  });
  CAIRN_RETURN_IF_ERROR(status);
  return granted;
}

Status GrpcCacheClient::Flush(const CallOptions& options) {
  grpc::ClientContext context;
  Prepare(context, After(options.deadline), options.trace);
  v1::FlushResponse response;
  return Count(rpc::FromGrpc(stub_->Flush(&context, v1::FlushRequest(), &response)));
}

Result<NodeStats> GrpcCacheClient::Stat(const CallOptions& options) {
  grpc::ClientContext context;
  Prepare(context, After(options.deadline), options.trace);
  v1::StatResponse response;
  CAIRN_RETURN_IF_ERROR(Count(rpc::FromGrpc(stub_->Stat(&context, v1::StatRequest(), &response))));
  return FromProto(response);
}

Result<std::unique_ptr<EventStream>> GrpcCacheClient::WatchEvents(const WatchOptions& options) {
  return NewEventStream(events_.get(), options);
}

ClientStats GrpcCacheClient::GetStats() const {
  const auto get = [](const std::atomic<uint64_t>& counter) {
    return counter.load(std::memory_order_relaxed);
  };
  ClientStats stats;
  stats.matches = get(totals_.matches);
  stats.matched_blocks = get(totals_.matched_blocks);
  stats.fetches = get(totals_.fetches);
  stats.fetched_slices = get(totals_.fetched_slices);
  stats.pushed_parts = get(totals_.pushed_parts);
  stats.pushed_bytes = get(totals_.pushed_bytes);
  stats.corrupt_slices = get(totals_.corrupt_slices);
  for (size_t tier = 0; tier < kTierCount; ++tier)
    stats.fetched_bytes[tier] = get(totals_.fetched_bytes[tier]);
  for (size_t code = 0; code < stats.calls_by_code.size(); ++code)
    stats.calls_by_code[code] = get(totals_.by_code[code]);
  for (size_t path = 0; path < kPathCount; ++path)
    stats.fetched_bytes_by_path[path] = get(totals_.fetched_by_path[path]);
  stats.pushed_bytes_by_path[static_cast<size_t>(Path::kLocal)] = get(totals_.pushed_local);
  stats.pushed_bytes_by_path[static_cast<size_t>(Path::kGrpc)] =
      stats.pushed_bytes - std::min(stats.pushed_bytes, get(totals_.pushed_local));
  stats.lent_bytes = get(totals_.lent_bytes);
  stats.local_fallbacks = get(totals_.local_fallbacks);
  const local::LocalPath::State local = local_.GetState();
  stats.local_sessions = local.sessions;
  stats.path = local.open ? Path::kLocal : Path::kGrpc;
  stats.path_reason = local.reason;
  stats.sessions = session_.times_opened();
  stats.breaker_opened = breaker_.times_opened();
  stats.breaker_rejected = breaker_.rejected();
  stats.dropped_releases = releases_.dropped();
  stats.connected = session_.open();
  stats.breaker = breaker_.state();
  return stats;
}

Result<PathChoice> ParsePathChoice(std::string_view text, std::string_view field) {
  if (text == "auto") return PathChoice::kAuto;
  if (text == "grpc") return PathChoice::kGrpc;
  if (text == "local") return PathChoice::kLocal;
  return InvalidArgument("field '{}': got '{}', expected auto, grpc or local", field, text);
}

Result<std::unique_ptr<CacheClient>> Connect(const ConnectOptions& options) {
  if (options.client_name.size() > 128) {
    return InvalidArgument("field 'client_name': got {} characters, expected 0 to 128",
                           options.client_name.size());
  }
  CAIRN_ASSIGN_OR_RETURN(auto control, NewChannel(options));
  CAIRN_ASSIGN_OR_RETURN(auto events, NewChannel(options));
  std::vector<std::shared_ptr<grpc::Channel>> data(kDataConnections);
  for (auto& channel : data) {
    CAIRN_ASSIGN_OR_RETURN(channel, NewChannel(options));
  }
  return std::unique_ptr<CacheClient>(std::make_unique<GrpcCacheClient>(
      options, std::move(control), std::move(events), std::move(data)));
}

}  // namespace cairn::client
