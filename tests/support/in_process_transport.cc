#include "tests/support/in_process_transport.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <variant>

#include "clients/cpp/src/rows_of_slices.h"
#include "clients/cpp/src/slice_assembler.h"

namespace cairn::testing {
namespace {

constexpr Duration kOpenSession = std::chrono::seconds(3);
constexpr size_t kGroupParts = 256;

client::SlicePiece ToPiece(const cache::FetchedSlice& slice) {
  return {.slice = slice, .chunks = {slice.data}};
}

client::NodeStats ToClient(const cache::EngineStats& stats) {
  client::NodeStats out;
  static_cast<NodeStatistics&>(out) = stats;
  for (const TierKind kind : kTiersByRank) {
    if (stats.tiers[kind]) out.tiers.push_back(*stats.tiers[kind]);
  }
  return out;
}

}  // namespace

// Not thread-safe, as EventStream.
class InProcessWatch final : public client::EventStream {
 public:
  InProcessWatch(InProcessNode* node, const Clock* clock,
                 std::shared_ptr<InProcessNode::Watch> watch)
      : node_(*node), clock_(*clock), watch_(std::move(watch)) {}

  Result<std::optional<client::CacheEvent>> Next(Duration wait) override {
    const TimePoint until = clock_.Now() + wait;
    for (;;) {
      if (cancelled_) return Errorf(StatusCode::kCancelled, "watch: cancelled");
      CAIRN_ASSIGN_OR_RETURN(const auto events, node_.NextEvent(*watch_));
      if (!events.empty()) return std::optional(events[0]);
      if (!node_.Wait(until).ok()) return std::optional<client::CacheEvent>();
    }
  }
  void Cancel() override { cancelled_ = true; }

 private:
  InProcessNode& node_;
  const Clock& clock_;
  const std::shared_ptr<InProcessNode::Watch> watch_;
  std::atomic<bool> cancelled_{false};
};

Result<client::SessionInfo> InProcessLink::Open() {
  CAIRN_ASSIGN_OR_RETURN(client::SessionInfo session,
                         node_->OpenSession(client_, clock_->Now() + kOpenSession));
  session_ = session.id;
  return session;
}

Status InProcessLink::Close() {
  node_->CloseSession(std::exchange(session_, {}));
  return OkStatus();
}

Result<client::OpenedNamespace> InProcessTransport::OpenNamespace(
    const NamespaceSpec& spec, const client::NamespaceOptions& how, const client::CallOptions&,
    TimePoint deadline) {
  CAIRN_ASSIGN_OR_RETURN(cache::CacheEngine * engine, node_.Engine());
  return Arrived(engine->OpenNamespace(spec, /*strict=*/false, how.block_life), deadline);
}

Result<client::Matched> InProcessTransport::MatchNow(const client::TransportCall& call,
                                                     const Digest& fingerprint,
                                                     std::span<const BlockKey> keys,
                                                     const client::MatchOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(const InProcessNode::Peer peer, node_.Find(call.session->id));
  CAIRN_ASSIGN_OR_RETURN(
      const cache::MatchResult result,
      Arrived(peer.engine->Match({.session = peer.session,
                                  .fingerprint = fingerprint,
                                  .keys = keys,
                                  .lease_ttl = options.lease_ttl,
                                  .lease = options.lease,
                                  .prefill_tokens_per_second = options.prefill_tokens_per_second,
                                  .trace = options.trace}),
              call.deadline));
  client::Matched matched = {.lease = result.lease.value_or(0), .lease_ttl = result.lease_ttl};
  static_cast<MatchedPrefix&>(matched.outcome) = result;
  return matched;
}

std::optional<Result<client::Matched>> InProcessTransport::Match(
    const client::TransportCall& call, const Digest& fingerprint, std::span<const BlockKey> keys,
    const client::MatchOptions& options) {
  return MatchNow(call, fingerprint, keys, options);
}

std::optional<client::FetchReport> InProcessTransport::Fetch(const client::LeaseInfo& lease,
                                                             const client::FetchRange& range,
                                                             client::FetchSink& sink,
                                                             const client::FetchOptions& options,
                                                             TimePoint deadline) {
  client::SliceAssembler assembler(&sink, {.blocks = lease.blocks, .verify = options.verify});
  client::FetchReport report;
  // By when something must come.
  TimePoint until = std::min(deadline, clock_.Now() + options.progress);
  const auto run = [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const InProcessNode::Peer peer, node_.Find(lease.session));
    CAIRN_RETURN_IF_ERROR(node_.Arrive(until));
    CAIRN_ASSIGN_OR_RETURN(const auto stream, peer.engine->Fetch({.session = peer.session,
                                                                  .lease = lease.id,
                                                                  .block_begin = range.block_begin,
                                                                  .block_end = range.block_end,
                                                                  .layer_begin = range.layer_begin,
                                                                  .layer_end = range.layer_end,
                                                                  .trace = options.trace}));
    for (;;) {
      const auto item = NextItem(*stream, options, until);
      CAIRN_RETURN_IF_ERROR(item.status());
      if (!item->has_value()) return OkStatus();
      const InProcessFaults faults = node_.faults();
      if (faults.die_after_slices && assembler.counts().slices >= *faults.die_after_slices) {
        node_.Die();
        return Errorf(StatusCode::kUnavailable, "the node died");
      }
      if (faults.slice_latency > Duration::zero()) {
        node_.Advance(std::min(faults.slice_latency, until - clock_.Now()));
      }
      if (clock_.Now() >= until) {
        return Errorf(StatusCode::kDeadlineExceeded, "fetch: no new slice in time");
      }
      report.node_answers = true;
      if (const auto* failure = std::get_if<cache::FetchFailure>(&**item)) {
        assembler.Fail(failure->block, failure->reason);
      } else {
        CAIRN_RETURN_IF_ERROR(assembler.Take(ToPiece(std::get<cache::FetchedSlice>(**item))));
      }
      until = std::min(deadline, clock_.Now() + options.progress);
    }
  };
  report.status = run();
  report.counts = assembler.counts();
  return report;
}

Result<std::optional<cache::FetchStream::Item>> InProcessTransport::NextItem(
    cache::FetchStream& stream, const client::FetchOptions& options, TimePoint until) {
  for (;;) {
    if (options.cancel.stop_requested()) {
      return Errorf(StatusCode::kCancelled, "fetch: cancelled by the caller");
    }
    auto item = stream.Next(TimePoint());
    if (item.status().code() != StatusCode::kDeadlineExceeded) return item;
    CAIRN_RETURN_IF_ERROR(node_.Wait(until));
  }
}

std::optional<client::RowReport> InProcessTransport::FetchRows(const client::LeaseInfo& lease,
                                                               const client::RowsWanted& wanted,
                                                               client::RowSink& sink,
                                                               const client::FetchOptions& options,
                                                               TimePoint deadline) {
  client::RowReport report;
  std::vector<bool> done(wanted.groups.size());
  TimePoint until = std::min(deadline, clock_.Now() + options.progress);
  const auto run = [&]() -> Status {
    CAIRN_ASSIGN_OR_RETURN(const InProcessNode::Peer peer, node_.Find(lease.session));
    CAIRN_RETURN_IF_ERROR(node_.Arrive(until));
    CAIRN_ASSIGN_OR_RETURN(const auto stream, peer.engine->Fetch({.session = peer.session,
                                                                  .lease = lease.id,
                                                                  .layer_begin = wanted.layer,
                                                                  .layer_end = wanted.layer + 1,
                                                                  .trace = options.trace,
                                                                  .rows = wanted.groups}));
    for (;;) {
      const auto item = NextItem(*stream, options, until);
      CAIRN_RETURN_IF_ERROR(item.status());
      if (!item->has_value()) return OkStatus();
      const InProcessFaults faults = node_.faults();
      if (faults.die_after_slices && report.counts.slices >= *faults.die_after_slices) {
        node_.Die();
        return Errorf(StatusCode::kUnavailable, "the node died");
      }
      if (faults.slice_latency > Duration::zero()) {
        node_.Advance(std::min(faults.slice_latency, until - clock_.Now()));
      }
      if (clock_.Now() >= until) {
        return Errorf(StatusCode::kDeadlineExceeded, "fetch: no new rows in time");
      }
      report.node_answers = true;
      until = std::min(deadline, clock_.Now() + options.progress);
      if (const auto* failure = std::get_if<cache::FetchFailure>(&**item)) {
        const auto [begin, end] = client::GroupsOf(wanted.groups, failure->block);
        for (size_t i = begin; i < end; ++i) {
          if (!done[i]) sink.OnRowsFailed(i, failure->reason);
          done[i] = true;
        }
        continue;
      }
      const auto& rows = std::get<cache::FetchedRows>(**item);
      auto [i, end] = client::GroupsOf(wanted.groups, rows.block);
      while (i < end && wanted.groups[i].head != rows.head) ++i;
      CAIRN_CHECK(i < end && !done[i]);
      done[i] = true;
      CAIRN_CHECK(HashRows(rows, wanted.groups[i].mask, rows.data) == rows.xxh3);
      ++report.counts.slices;
      report.counts.rows += wanted.groups[i].rows();
      CAIRN_RETURN_IF_ERROR(sink.OnRows(i, rows, rows.data));
    }
  };
  report.status = run();
  for (size_t i = 0; i < done.size(); ++i) {
    if (!done[i]) report.rest.push_back(i);
  }
  return report;
}

Status InProcessTransport::PushGroup(const InProcessNode::Peer& peer, const Digest& fingerprint,
                                     std::span<const client::PartToPush> parts,
                                     const client::PushOptions& options,
                                     std::span<Status> results) {
  std::vector<cache::ReservePartRequest> requests;
  for (const client::PartToPush& part : parts) {
    requests.push_back({.key = part.key,
                        .parent = part.parent,
                        .first_position = part.first_position,
                        .part = part.rect,
                        .bytes = part.bytes.size(),
                        .compute_seconds = part.compute_seconds});
  }
  CAIRN_ASSIGN_OR_RETURN(
      const auto reserved,
      peer.engine->Reserve(peer.session, fingerprint, requests, options.reservation_ttl));
  std::vector<cache::ReservationId> ids;
  std::vector<size_t> at;
  Status written;
  for (size_t i = 0; i < parts.size(); ++i) {
    results[i] = reserved[i].status();
    if (!reserved[i].ok()) continue;
    ids.push_back(*reserved[i]);
    at.push_back(i);
    if (written.ok()) written = peer.engine->Write(peer.session, ids.back(), 0, parts[i].bytes);
  }
  if (!written.ok()) {
    (void)peer.engine->Abort(peer.session, ids);
    return written;
  }
  if (!ids.empty()) {
    CAIRN_ASSIGN_OR_RETURN(const std::vector<Status> committed,
                           peer.engine->Commit(peer.session, ids, options.trace));
    for (size_t i = 0; i < at.size(); ++i) results[at[i]] = committed[i];
  }
  // Somebody else's copy is as good: keys name content.
  for (Status& result : results) {
    if (result.code() == StatusCode::kAlreadyExists) result = OkStatus();
  }
  return OkStatus();
}

std::optional<client::PushReport> InProcessTransport::Push(
    const client::TransportCall& call, const Digest& fingerprint,
    std::span<const client::PartToPush> parts, const client::PushOptions& options) {
  client::PushReport report = {.results = std::vector<Status>(parts.size())};
  for (size_t begin = 0; begin < parts.size() && report.status.ok(); begin += kGroupParts) {
    const size_t count = std::min(kGroupParts, parts.size() - begin);
    const std::span<Status> results(report.results);
    const auto peer = node_.Find(call.session->id);
    report.status = peer.status();
    if (peer.ok()) {
      report.status = PushGroup(*peer, fingerprint, parts.subspan(begin, count), options,
                                results.subspan(begin, count));
    }
    if (report.status.ok()) report.status = node_.Arrive(call.deadline);
    if (!report.status.ok()) std::ranges::fill(results.subspan(begin), report.status);
  }
  return report;
}

std::optional<Result<client::TierList>> InProcessTransport::Exists(
    const client::TransportCall& call, const Digest& fingerprint, std::span<const BlockKey> keys,
    const client::CallOptions&) {
  const auto engine = node_.Engine();
  if (!engine.ok()) return engine.status();
  return Arrived((*engine)->Exists(fingerprint, keys), call.deadline);
}

std::optional<Result<Duration>> InProcessTransport::Renew(const client::LeaseInfo& lease,
                                                          Duration ttl, const client::CallOptions&,
                                                          TimePoint deadline) {
  const auto peer = node_.Find(lease.session);
  if (!peer.ok()) return peer.status();
  return Arrived(peer->engine->RenewLease(peer->session, lease.id, ttl), deadline);
}

bool InProcessTransport::Release(const client::LeaseInfo& lease) {
  // The leases of a session that has ended have ended, too.
  const auto peer = node_.Find(lease.session);
  if (peer.ok()) (void)peer->engine->Release(peer->session, {&lease.id, 1});
  return true;
}

Result<client::PrefetchOutcome> InProcessTransport::Prefetch(const client::TransportCall& call,
                                                             const Digest& fingerprint,
                                                             std::span<const BlockKey> keys,
                                                             Duration needed_in,
                                                             const client::CallOptions&) {
  CAIRN_ASSIGN_OR_RETURN(const InProcessNode::Peer peer, node_.Find(call.session->id));
  return Arrived(peer.engine->Prefetch({.session = peer.session,
                                        .fingerprint = fingerprint,
                                        .keys = keys,
                                        .needed_in = needed_in}),
                 call.deadline);
}

Status InProcessTransport::Flush(const client::CallOptions&, TimePoint deadline) {
  for (;;) {
    CAIRN_ASSIGN_OR_RETURN(cache::CacheEngine * engine, node_.Engine());
    const Status flushed = engine->Flush(TimePoint());
    if (flushed.code() != StatusCode::kDeadlineExceeded) return flushed;
    CAIRN_RETURN_IF_ERROR(node_.Wait(deadline));
  }
}

Result<client::NodeStats> InProcessTransport::Stat(const client::CallOptions&, TimePoint deadline) {
  CAIRN_ASSIGN_OR_RETURN(cache::CacheEngine * engine, node_.Engine());
  CAIRN_RETURN_IF_ERROR(node_.Arrive(deadline));
  return ToClient(engine->GetStats());
}

Result<std::unique_ptr<client::EventStream>> InProcessTransport::WatchEvents(
    const client::SessionPtr& session, const client::WatchOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(cache::CacheEngine * engine, node_.Engine());
  cache::WatchRequest request{.fingerprint = options.fingerprint, .snapshot = options.snapshot};
  if (session != nullptr) {
    CAIRN_ASSIGN_OR_RETURN(const InProcessNode::Peer peer, node_.Find(session->id));
    request.session = peer.session;
  }
  CAIRN_ASSIGN_OR_RETURN(auto events, engine->Watch(request));
  return std::make_unique<InProcessWatch>(&node_, &clock_, node_.AddWatch(std::move(events)));
}

}  // namespace cairn::testing
