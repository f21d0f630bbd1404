#include "clients/cpp/src/core/transport_client.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "clients/cpp/src/checks.h"
#include "clients/cpp/src/core/rest_sink.h"
#include "clients/cpp/src/rows_of_slices.h"

namespace cairn::client {
namespace {

// Buffers of pushes in place over the main path: some batches of a worker.
constexpr size_t kIdleBufferBytes = 32u << 20;

template <typename T>
const Status& StatusOf(const Result<T>& result) {
  return result.status();
}
const Status& StatusOf(const PushReport& report) { return report.status; }
const Status& StatusOf(const Status& status) { return status; }

Status NotAsked() {
  return Errorf(StatusCode::kUnavailable,
                "the node failed repeatedly; it is not asked for a while");
}

Status NoLease() { return InvalidArgument("field 'lease': got none, expected a lease from Match"); }

Status SessionEnded(const LeaseInfo& lease) {
  return Errorf(StatusCode::kNotFound, "the session of lease {} has ended", lease.id);
}

}  // namespace

// Where leases go back to. They hold it weakly, but one may be inside while the client ends: hence
// Close.
class TransportClient::LeaseReturn final : public LeaseOwner {
 public:
  LeaseReturn(NearTransport* near, MainTransport* main) : near_(near), main_(main) {}
  void ReleaseLease(const LeaseInfo& lease) override {
    MutexLock lock(mu_);
    if (main_ == nullptr || (near_ != nullptr && near_->Release(lease))) return;
    main_->Release(lease);
  }
  // The session ends with the client, and all its leases with it.
  void Close() {
    MutexLock lock(mu_);
    main_ = nullptr;
  }

 private:
  Mutex mu_;
  NearTransport* const near_;
  MainTransport* main_ ABSL_GUARDED_BY(mu_);
};

// The state of a call of Get. Not OK: the call failed, and delivered nothing.
struct TransportClient::Got {
  Status status = {};
  MatchOutcome outcome = {};
  // The work that is still to be done: the fetch, after a match over the near path; or all of it,
  // after the node answered that it cannot do both in one call.
  enum class Rest : uint8_t { kNothing, kFetch, kAll } rest = Rest::kNothing;
  // The error of a fetch that failed after it delivered slices.
  Status late = {};

  friend const Status& StatusOf(const Got& got) { return got.status; }
};

TransportClient::TransportClient(const Options& options, const Clock* clock,
                                 std::unique_ptr<NearTransport> near,
                                 std::unique_ptr<MainTransport> main)
    : options_(options),
      clock_(clock),
      near_(std::move(near)),
      main_(std::move(main)),
      breaker_(options.breaker, clock),
      buffers_(std::make_shared<PartBuffers>(kIdleBufferBytes)),
      leases_(std::make_shared<LeaseReturn>(near_.get(), main_.get())),
      session_({.max_backoff = options.max_reconnect_backoff,
                .seed = options.seed,
                .has_thread = options.session_thread},
               clock, main_.get(), [this] {
                 breaker_.Reset();
                 // The old session's, if there was one.
                 if (near_ != nullptr) near_->CheckAlive();
               }) {
  for (const KnownNamespace& known : options.namespaces) (void)Remember(known.spec, known.how);
  if (options.session_thread) session_thread_.emplace(&session_);
}

TransportClient::~TransportClient() { leases_->Close(); }

template <typename Answer, typename Call>
Answer TransportClient::Guarded(TimePoint deadline, Call call) {
  CircuitBreaker::Permit permit = breaker_.Ask();
  if (!permit) return Answer{Count(NotAsked())};
  Result<SessionPtr> session = session_.Get(deadline);
  Answer answer = session.ok() ? call(*session) : Answer{session.status()};
  if (StatusOf(answer).code() == StatusCode::kNotFound &&
      session_.HasEnded((*session)->id, deadline)) {
    // The node was restarted, and nobody has noticed yet that the session is gone.
    session = session_.Get(deadline);
    answer = session.ok() ? call(*session) : Answer{session.status()};
  }
  const StatusCode code = StatusOf(answer).code();
  if (CountsAsFailure(code)) {
    session_.Look();
    permit.Failed();
  } else if (code != StatusCode::kCancelled) {
    permit.Succeeded();
  }
  totals_.AddCall(code);
  return answer;
}

bool TransportClient::AsksNear(const MatchOptions& options) const {
  // Its messages have no room for these.
  const bool plain = options.holders.empty() && options.wait <= Duration(0) && !options.announce;
  return plain || options_.near_only;
}

template <typename Answer, typename Ask>
std::optional<Answer> TransportClient::AskNear(Ask ask) {
  if (near_ == nullptr) return std::nullopt;
  if (std::optional<Answer> answer = ask(*near_)) {
    if (!Ends(StatusOf(*answer))) return std::nullopt;
    return answer;
  }
  if (options_.near_only) return Answer{near_->Unavailable()};
  return std::nullopt;
}

template <typename Answer, typename Ask>
Answer TransportClient::AskPaths(Ask ask) {
  if (std::optional<Answer> answer = AskNear<Answer>(ask)) return *std::move(answer);
  return *ask(*main_);
}

bool TransportClient::Ends(const Status& status) {
  switch (status.code()) {
    case StatusCode::kUnavailable:
    case StatusCode::kDataLoss:
    case StatusCode::kResourceExhausted:
      if (options_.near_only) return true;
      totals_.AddFallback();
      return false;
    default:
      return true;
  }
}

Status TransportClient::Count(Status status) {
  totals_.AddCall(status.code());
  return status;
}

Result<OpenedNamespace> TransportClient::OpenNamespace(const NamespaceSpec& spec,
                                                       const CallOptions& options,
                                                       const NamespaceOptions& how) {
  CAIRN_RETURN_IF_ERROR(Validate(spec));
  CAIRN_RETURN_IF_ERROR(session_.Remember(spec, how));
  const Digest fingerprint = Fingerprint(spec);
  if (near_ != nullptr) near_->Remember(fingerprint, spec.tenant);
  const TimePoint deadline = clock_->Now() + options.deadline;
  using Answer = Result<OpenedNamespace>;
  return Guarded<Answer>(deadline, [&](const SessionPtr& session) -> Answer {
    CAIRN_ASSIGN_OR_RETURN(OpenedNamespace opened,
                           main_->OpenNamespace(spec, how, options, deadline));
    if (opened.fingerprint != fingerprint) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "node and client derive different fingerprints: {} and {}",
                    opened.fingerprint.Hex(), fingerprint.Hex());
    }
    // The session may have been first, if it opened after the namespace was remembered above.
    if (session_.TakeCreated(fingerprint)) opened.created = true;
    if (near_ != nullptr) near_->Prepare({session, deadline}, fingerprint);
    return opened;
  });
}

MatchOutcome TransportClient::ToOutcome(Matched matched, const SessionPtr& session,
                                        const Digest& fingerprint, TimePoint begin) {
  MatchOutcome outcome = std::move(matched.outcome);
  if (matched.lease == 0) return outcome;
  outcome.lease = Lease(leases_, {.id = matched.lease,
                                  .session = session->id,
                                  .fingerprint = fingerprint,
                                  .blocks = outcome.matched_blocks,
                                  // From the beginning: the node's clock for it started later.
                                  .expires_at = begin + matched.lease_ttl});
  return outcome;
}

Result<MatchOutcome> TransportClient::Match(const Digest& fingerprint,
                                            std::span<const BlockKey> keys,
                                            const MatchOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckKeys(keys));
  CAIRN_RETURN_IF_ERROR(CheckHolders(options.holders));
  CAIRN_RETURN_IF_ERROR(CheckWait(options.wait, options.wait_blocks, keys.size()));
  CAIRN_RETURN_IF_ERROR(CheckPools(options.joint));
  const TimePoint begin = clock_->Now();
  const TimePoint deadline = begin + options.deadline + options.wait;
  using Answer = Result<MatchOutcome>;
  Answer outcome = Guarded<Answer>(deadline, [&](const SessionPtr& session) -> Answer {
    const auto ask = [&](Transport& path) {
      return path.Match({session, deadline}, fingerprint, keys, options);
    };
    CAIRN_ASSIGN_OR_RETURN(Matched matched,
                           AsksNear(options) ? AskPaths<Result<Matched>>(ask) : *ask(*main_));
    return ToOutcome(std::move(matched), session, fingerprint, begin);
  });
  if (outcome.status().code() == StatusCode::kNotFound) session_.ReopenNamespaces();
  if (outcome.ok()) totals_.AddMatch(outcome->matched_blocks);
  return outcome;
}

Status TransportClient::Fetch(const Lease& lease, const FetchRange& range, FetchSink& sink,
                              const FetchOptions& options) {
  if (!lease.held()) return NoLease();
  CAIRN_RETURN_IF_ERROR(CheckRange(range, lease.info().blocks));
  if (!session_.IsCurrent(lease.info().session)) return Count(SessionEnded(lease.info()));
  const TimePoint deadline = clock_->Now() + options.deadline;
  CircuitBreaker::Permit permit = breaker_.Ask();
  if (!permit) return Count(NotAsked());
  const FetchReport report = RunFetch(lease.info(), range, sink, options, deadline);
  TellBreaker(permit, report.status, report.node_answers, deadline);
  totals_.AddFetch();
  return Count(report.status);
}

void TransportClient::TellBreaker(CircuitBreaker::Permit& permit, const Status& status,
                                  bool node_answers, TimePoint deadline) {
  if (node_answers && clock_->Now() >= deadline) {
    // The caller gave a healthy node too little time: that is not the node's failure.
    permit.Succeeded();
  } else if (CountsAsFailure(status.code())) {
    session_.Look();
    permit.Failed();
  } else if (status.code() != StatusCode::kCancelled) {
    permit.Succeeded();
  }
}

Status TransportClient::FetchRows(const Lease& lease, const RowLayout& layout, uint32_t layer,
                                  std::span<const RowGroup> groups, RowSink& sink,
                                  const FetchOptions& options) {
  if (!lease.held()) return NoLease();
  CAIRN_RETURN_IF_ERROR(layout.Check(layer, groups, lease.info().blocks));
  if (!session_.IsCurrent(lease.info().session)) return Count(SessionEnded(lease.info()));
  const TimePoint deadline = clock_->Now() + options.deadline;
  RowReport report;
  {
    CircuitBreaker::Permit permit = breaker_.Ask();
    if (!permit) return Count(NotAsked());
    report = RunFetchRows(lease.info(), {layout, layer, groups}, sink, options, deadline);
    TellBreaker(permit, report.status, report.node_answers, deadline);
  }
  if (report.status.code() != StatusCode::kUnimplemented) {
    totals_.AddFetch();
    return Count(report.status);
  }
  // The remaining rows are taken out of whole slices.
  std::vector<RowGroup> left;
  for (const size_t group : report.rest) left.push_back(groups[group]);
  NumberedRowSink numbered(sink, report.rest);
  return CacheClient::FetchRows(lease, layout, layer, left, numbered, options);
}

RowReport TransportClient::RunFetchRows(const LeaseInfo& lease, const RowsWanted& wanted,
                                        RowSink& sink, const FetchOptions& options,
                                        TimePoint deadline) {
  RowReport whole;
  whole.rest.resize(wanted.groups.size());
  std::iota(whole.rest.begin(), whole.rest.end(), size_t{0});
  if (near_ != nullptr) {
    if (std::optional<RowReport> near = near_->FetchRows(lease, wanted, sink, options, deadline)) {
      totals_.AddFetched(near_->path(), near->counts);
      if (near->rest.empty() || (!near->status.ok() && Ends(near->status))) return *near;
      whole = *std::move(near);
      whole.status = OkStatus();
      if (options_.near_only) {
        for (const size_t group : whole.rest) sink.OnRowsFailed(group, MissReason::kRefused);
        whole.rest.clear();
        return whole;
      }
    }
  }
  std::vector<RowGroup> left;
  for (const size_t group : whole.rest) left.push_back(wanted.groups[group]);
  NumberedRowSink numbered(sink, whole.rest);
  std::optional<RowReport> main =
      main_->FetchRows(lease, {wanted.layout, wanted.layer, left}, numbered, options, deadline);
  if (!main) {
    whole.status = Errorf(StatusCode::kUnimplemented, "fetch: this path knows no rows");
    return whole;
  }
  totals_.AddFetched(main_->path(), main->counts);
  whole.status = main->status;
  whole.node_answers |= main->node_answers;
  std::vector<size_t> rest;
  for (const size_t group : main->rest) rest.push_back(whole.rest[group]);
  whole.rest = std::move(rest);
  return whole;
}

FetchReport TransportClient::FetchOver(Transport& transport, const LeaseInfo& lease,
                                       const FetchRange& range, FetchSink& sink,
                                       const FetchOptions& options, TimePoint deadline) {
  FetchReport report = *transport.Fetch(lease, range, sink, options, deadline);
  totals_.AddFetched(transport.path(), report.counts);
  return report;
}

FetchReport TransportClient::RunFetch(const LeaseInfo& lease, const FetchRange& range,
                                      FetchSink& sink, const FetchOptions& options,
                                      TimePoint deadline) {
  std::optional<FetchReport> near;
  if (near_ != nullptr) near = near_->Fetch(lease, range, sink, options, deadline);
  // A lease of the main path, or of a near one that is gone.
  if (!near) return FetchOver(*main_, lease, range, sink, options, deadline);
  totals_.AddFetched(near_->path(), near->counts);
  // Slices that were delivered must not come twice.
  if (!near->status.ok() && (near->counts.slices > 0 || Ends(near->status))) return *near;
  FetchReport whole = {.node_answers = near->node_answers};
  RestSink undelivered(&sink, near->delivered_of_rest);
  FetchSink& rest_sink = near->delivered_of_rest.empty() ? sink : undelivered;
  for (const auto& [begin, end] : near->rest) {
    if (options_.near_only) {
      for (uint32_t block = begin; block < end; ++block) {
        sink.OnBlockFailed(block, MissReason::kRefused);
      }
      continue;
    }
    const FetchRange rest = {.block_begin = begin,
                             .block_end = end,
                             .layer_begin = range.layer_begin,
                             .layer_end = range.layer_end};
    const FetchReport report = FetchOver(*main_, lease, rest, rest_sink, options, deadline);
    whole.node_answers |= report.node_answers;
    whole.status = report.status;
    if (!whole.status.ok()) break;
  }
  return whole;
}

TransportClient::Got TransportClient::GetOverMain(const TransportCall& call,
                                                  const Digest& fingerprint,
                                                  std::span<const BlockKey> keys,
                                                  const LayerRange& layers, FetchSink& sink,
                                                  const MatchOptions& match,
                                                  const FetchOptions& fetch, TimePoint deadline) {
  std::optional<GetReport> report =
      main_->Get(call, fingerprint, keys, layers, sink, match, fetch, deadline);
  if (!report) return {.rest = Got::Rest::kAll};
  totals_.AddFetched(main_->path(), report->fetch.counts);
  totals_.AddFetch();
  Got got = {.status = report->fetch.status};
  if (report->outcome) got.outcome = std::move(*report->outcome);
  if (got.status.ok() || !report->fetch.node_answers) return got;
  // With bytes delivered: the caller gave a healthy node too little time, which is not the node's
  // failure; or the session had ended, and the whole must not be asked once more.
  if (got.status.code() == StatusCode::kNotFound || clock_->Now() >= deadline) {
    got.late = std::exchange(got.status, OkStatus());
  }
  return got;
}

Result<MatchOutcome> TransportClient::Get(const Digest& fingerprint, std::span<const BlockKey> keys,
                                          const LayerRange& layers, FetchSink& sink,
                                          const MatchOptions& match, const FetchOptions& fetch) {
  CAIRN_RETURN_IF_ERROR(CheckKeys(keys));
  CAIRN_RETURN_IF_ERROR(CheckLayers(layers));
  CAIRN_RETURN_IF_ERROR(CheckHolders(match.holders));
  // A lookup in a fetch has no room for it.
  if (match.joint.asked()) {
    return CacheClient::Get(fingerprint, keys, layers, sink, match, fetch);
  }
  const TimePoint begin = clock_->Now();
  const TimePoint answer_by = begin + match.deadline;
  MatchOptions leased = match;
  leased.lease = true;
  leased.lease_ttl = Duration(0);
  Got got = Guarded<Got>(answer_by, [&](const SessionPtr& session) -> Got {
    const TransportCall call = {session, answer_by};
    std::optional<Result<Matched>> near;
    if (AsksNear(match)) {
      near = AskNear<Result<Matched>>(
          [&](Transport& path) { return path.Match(call, fingerprint, keys, leased); });
    }
    if (!near) {
      return GetOverMain(call, fingerprint, keys, layers, sink, match, fetch,
                         begin + fetch.deadline);
    }
    if (!near->ok()) return {.status = near->status()};
    return {.outcome = ToOutcome(**std::move(near), session, fingerprint, begin),
            .rest = Got::Rest::kFetch};
  });
  if (got.status.code() == StatusCode::kNotFound) session_.ReopenNamespaces();
  CAIRN_RETURN_IF_ERROR(got.status);
  if (got.rest == Got::Rest::kAll) {
    return CacheClient::Get(fingerprint, keys, layers, sink, match, fetch);
  }
  totals_.AddMatch(got.outcome.matched_blocks);
  if (got.rest == Got::Rest::kFetch && got.outcome.matched_blocks > 0) {
    const Lease lease = std::move(got.outcome.lease);
    CAIRN_RETURN_IF_ERROR(
        Fetch(lease, {.layer_begin = layers.begin, .layer_end = layers.end}, sink, fetch));
  }
  if (!got.late.ok()) return Count(got.late);
  return std::move(got.outcome);
}

PushReport TransportClient::PushOverPaths(const TransportCall& call, const Digest& fingerprint,
                                          std::span<const PartToPush> parts,
                                          const PushOptions& options, uint64_t* near_bytes) {
  std::optional<PushReport> near;
  if (near_ != nullptr) near = near_->Push(call, fingerprint, parts, options);
  if (!near) {
    if (near_ != nullptr && options_.near_only) return {.status = near_->Unavailable()};
    return *main_->Push(call, fingerprint, parts, options);
  }
  PushReport report = *std::move(near);
  const bool failed = !report.status.ok() && Ends(report.status);
  report.results.resize(
      parts.size(), failed ? report.status : Status(StatusCode::kResourceExhausted, "not tried"));
  for (size_t i = 0; i < parts.size(); ++i) {
    if (report.results[i].ok()) *near_bytes += parts[i].bytes.size();
  }
  if (failed) return report;
  report.status = OkStatus();
  if (options_.near_only) return report;
  // Parts that were not tried, and those for which the near path had no room.
  std::vector<PartToPush> left;
  std::vector<size_t> at;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (report.results[i].code() != StatusCode::kResourceExhausted) continue;
    left.push_back(parts[i]);
    at.push_back(i);
  }
  if (left.empty()) return report;
  const PushReport rest = *main_->Push(call, fingerprint, left, options);
  for (size_t i = 0; i < rest.results.size(); ++i) report.results[at[i]] = rest.results[i];
  report.status = rest.status;
  return report;
}

Result<std::vector<Status>> TransportClient::Push(const Digest& fingerprint,
                                                  std::span<const PartToPush> parts,
                                                  const PushOptions& options) {
  const TimePoint deadline = clock_->Now() + options.deadline;
  uint64_t near_bytes = 0;
  PushReport report = Guarded<PushReport>(deadline, [&](const SessionPtr& session) {
    near_bytes = 0;
    return PushOverPaths({session, deadline}, fingerprint, parts, options, &near_bytes);
  });
  if (report.status.code() == StatusCode::kNotFound) session_.ReopenNamespaces();
  uint64_t stored = 0, bytes = 0;
  for (size_t i = 0; i < report.results.size(); ++i) {
    if (!report.results[i].ok()) continue;
    ++stored;
    bytes += parts[i].bytes.size();
  }
  if (!report.status.ok() && stored == 0) return report.status;
  totals_.AddPushed(stored, bytes, near_bytes);
  return std::move(report.results);
}

Result<std::unique_ptr<InPlacePush>> TransportClient::BeginPush(const Digest& fingerprint,
                                                                std::span<const PartToWrite> parts,
                                                                const PushOptions& options) {
  const auto buffered = [&](std::span<const PartToWrite> some) {
    return NewBufferedPush(*this, fingerprint, some, options, *buffers_);
  };
  using Answer = Result<std::unique_ptr<InPlacePush>>;
  const TimePoint until = clock_->Now() + options.room_deadline.value_or(options.deadline);
  Answer push = Guarded<Answer>(until, [&](const SessionPtr& session) -> Answer {
    if (near_ == nullptr) return nullptr;
    InPlaceHooks hooks;
    if (!options_.near_only) hooks.rest = buffered;
    hooks.committed = [this](uint64_t committed, uint64_t bytes) {
      totals_.AddPushed(committed, bytes, bytes);
    };
    auto begun = near_->BeginPush({session, until}, fingerprint, parts, options, hooks);
    if (!begun) return options_.near_only ? Answer(near_->Unavailable()) : Answer(nullptr);
    return begun->ok() || Ends(begun->status()) ? *std::move(begun) : Answer(nullptr);
  });
  if (push.status().code() == StatusCode::kNotFound) session_.ReopenNamespaces();
  if (push.ok() && *push == nullptr) return buffered(parts);
  return push;
}

Result<PrefetchOutcome> TransportClient::Prefetch(const Digest& fingerprint,
                                                  std::span<const BlockKey> keys,
                                                  Duration needed_in, const CallOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckKeys(keys));
  const TimePoint deadline = clock_->Now() + options.deadline;
  return Guarded<Result<PrefetchOutcome>>(deadline, [&](const SessionPtr& session) {
    return main_->Prefetch({session, deadline}, fingerprint, keys, needed_in, options);
  });
}

Result<std::vector<std::optional<TierKind>>> TransportClient::Exists(const Digest& fingerprint,
                                                                     std::span<const BlockKey> keys,
                                                                     const CallOptions& options) {
  CAIRN_RETURN_IF_ERROR(CheckKeys(keys));
  const TimePoint deadline = clock_->Now() + options.deadline;
  return Guarded<Result<TierList>>(deadline, [&](const SessionPtr& session) {
    return AskPaths<Result<TierList>>([&](Transport& path) {
      return path.Exists({session, deadline}, fingerprint, keys, options);
    });
  });
}

Result<Duration> TransportClient::RenewLease(const Lease& lease, Duration ttl,
                                             const CallOptions& options) {
  if (!lease.held()) return NoLease();
  const LeaseInfo& info = lease.info();
  const TimePoint deadline = clock_->Now() + options.deadline;
  using Answer = Result<Duration>;
  return Guarded<Answer>(deadline, [&](const SessionPtr& session) -> Answer {
    if (session->id != info.session) return SessionEnded(info);
    if (near_ != nullptr) {
      if (auto renewed = near_->Renew(info, ttl, options, deadline)) return *renewed;
    }
    return *main_->Renew(info, ttl, options, deadline);
  });
}

Status TransportClient::Flush(const CallOptions& options) {
  return Count(main_->Flush(options, clock_->Now() + options.deadline));
}

Result<NodeStats> TransportClient::Stat(const CallOptions& options) {
  Result<NodeStats> stats = main_->Stat(options, clock_->Now() + options.deadline);
  totals_.AddCall(stats.status().code());
  return stats;
}

Result<std::unique_ptr<EventStream>> TransportClient::WatchEvents(const WatchOptions& options) {
  SessionPtr session = session_.Current();
  if (session == nullptr && options_.names_tenant) {
    CAIRN_ASSIGN_OR_RETURN(session, session_.Get(clock_->Now() + options.deadline));
  }
  return main_->WatchEvents(session, options);
}

NodeCondition TransportClient::condition() const {
  return breaker_.state() == BreakerState::kClosed ? session_.condition() : NodeCondition::kLost;
}

std::optional<NodePlace> TransportClient::place() const {
  const SessionPtr session = session_.Last();
  if (session == nullptr) return std::nullopt;
  return NodePlace{.node_id = session->node_id, .host = session->host, .zone = session->zone};
}

Status TransportClient::Remember(const NamespaceSpec& spec, const NamespaceOptions& how) {
  CAIRN_RETURN_IF_ERROR(session_.Remember(spec, how));
  if (near_ != nullptr) near_->Remember(Fingerprint(spec), spec.tenant);
  session_.ReopenNamespaces();
  return OkStatus();
}

Status TransportClient::Probe(Duration within) {
  const TimePoint deadline = clock_->Now() + within;
  return Guarded<Status>(deadline, [&](const SessionPtr&) {
    return main_->Stat({.deadline = within}, deadline).status();
  });
}

ClientStats TransportClient::GetStats() const {
  ClientStats stats = totals_.Get();
  NearTransport::State near = {.reason = "the client uses no same-node sessions"};
  if (near_ != nullptr) near = near_->GetState();
  stats.local_sessions = near.sessions;
  stats.path = near.open ? near_->path() : main_->path();
  stats.path_reason = std::move(near.reason);
  stats.sessions = session_.times_opened();
  stats.breaker_opened = breaker_.times_opened();
  stats.breaker_rejected = breaker_.rejected();
  stats.dropped_releases = main_->dropped_releases();
  stats.connected = session_.open();
  stats.home = options_.address;
  if (const SessionPtr session = session_.Last()) stats.home_node_id = session->node_id;
  stats.breaker = breaker_.state();
  return stats;
}

}  // namespace cairn::client
