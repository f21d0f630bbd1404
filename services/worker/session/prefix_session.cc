#include "services/worker/session/prefix_session.h"

#include <algorithm>
#include <cstring>
#include <stop_token>
#include <utility>

#include "cairn/client/cache_client.h"
#include "services/common/log/log.h"

namespace cairn::worker {
namespace {

// A fetch may always take this long: estimates of short recomputations are rough.
constexpr std::chrono::milliseconds kMinFetchLimit{500};
// Of a fetch while the worker does not know its prefill speed.
constexpr std::chrono::seconds kUnknownFetchLimit{30};

MissReason FromClient(client::MissReason reason) {
  return static_cast<MissReason>(static_cast<uint8_t>(reason));
}

MissReason ReasonOf(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return MissReason::kNone;
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kCancelled:
      return MissReason::kDeadline;
    case StatusCode::kUnavailable:
      return MissReason::kUnavailable;
    case StatusCode::kDataLoss:
      return MissReason::kCorrupt;
    case StatusCode::kNotFound:  // The lease or its session has ended.
      return MissReason::kEvicted;
    default:
      return MissReason::kRefused;
  }
}

// Puts what arrives into the pages.
class PageSink final : public client::FetchSink {
 public:
  PageSink(const KvLayout& kv, KvSequence& sequence, FetchProgress& progress)
      : kv_(kv), sequence_(sequence), progress_(progress) {}

  std::span<std::byte> Destination(const client::SliceInfo& slice) override {
    // A slice of all heads is laid out as the page is; others go through the client's buffer, and so
    // does one whose place holds verified bytes already.
    if (!Fits(slice) || !AllHeads(slice) || progress_.Missing(PieceOf(slice)) != Heads(slice)) {
      return {};
    }
    return sequence_.LayerSlice(slice.block, static_cast<int>(slice.layer));
  }

  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    if (!Fits(slice) || data.size() != slice.slice_bytes) {
      return Errorf(StatusCode::kDataLoss,
                    "slice of block {}, layer {}, heads {} to {}: got {} bytes with codec {}, which "
                    "the namespace's layout does not have",
                    slice.block, slice.layer, slice.part.head_begin, slice.part.head_end,
                    data.size(), static_cast<int>(slice.codec));
    }
    const FetchProgress::Piece piece = PieceOf(slice);
    if (progress_.Missing(piece) == 0) return OkStatus();
    const std::span<std::byte> page =
        sequence_.LayerSlice(slice.block, static_cast<int>(slice.layer));
    if (data.data() != page.data()) CopyHeads(slice, data, page);
    progress_.Arrived(piece, data.size(), slice.tier == client::TierKind::kDisk,
                      SteadyClock::Get().Now());
    return OkStatus();
  }

  void OnBlockFailed(uint32_t block, client::MissReason reason) override {
    progress_.BlockFailed(block, FromClient(reason));
  }

 private:
  bool Fits(const client::SliceInfo& slice) const {
    if (slice.codec != format::Codec::kRaw || slice.block >= sequence_.page_count() ||
        slice.layer >= static_cast<uint32_t>(kv_.layers) ||
        slice.part.head_begin >= slice.part.head_end ||
        slice.part.head_end > static_cast<uint32_t>(kv_.kv_heads)) {
      return false;
    }
    return slice.slice_bytes == 2 * kv_.head_bytes() * Heads(slice);
  }
  static size_t Heads(const client::SliceInfo& slice) {
    return static_cast<size_t>(slice.part.head_end - slice.part.head_begin);
  }
  bool AllHeads(const client::SliceInfo& slice) const {
    return Heads(slice) == static_cast<size_t>(kv_.kv_heads);
  }
  static FetchProgress::Piece PieceOf(const client::SliceInfo& slice) {
    return {slice.block, slice.layer, slice.part.head_begin, slice.part.head_end};
  }
  void CopyHeads(const client::SliceInfo& slice, std::span<const std::byte> data,
                 std::span<std::byte> page) const {
    const size_t bytes = kv_.head_bytes() * Heads(slice);
    const size_t first = kv_.head_bytes() * slice.part.head_begin;
    for (size_t plane = 0; plane < 2; ++plane) {
      std::memcpy(page.data() + plane * kv_.plane_bytes() + first, data.data() + plane * bytes,
                  bytes);
    }
  }

  const KvLayout& kv_;
  KvSequence& sequence_;
  FetchProgress& progress_;
};

}  // namespace

struct PrefixSession::Match::Lease {
  client::Lease lease;
};

PrefixSession::Match::Match() = default;
PrefixSession::Match::~Match() = default;
PrefixSession::Match::Match(Match&&) noexcept = default;
PrefixSession::Match& PrefixSession::Match::operator=(Match&&) noexcept = default;

struct PrefixFetch::State {
  State(client::Lease held, const FetchProgress::Shape& shape, TimePoint begin, Duration stall,
        Duration limit)
      : lease(std::move(held)), start(begin), progress(shape, begin, stall, limit) {}
  client::Lease lease;
  const TimePoint start;
  std::stop_source stop;
  FetchProgress progress;
};

PrefixSession::PrefixSession(client::CacheClient& client, NamespaceSpec spec, const KvLayout& kv,
                             const Options& options)
    : client_(client),
      spec_(std::move(spec)),
      kv_(kv),
      fingerprint_(Fingerprint(spec_)),
      options_(options),
      fetch_thread_({.name = "cairn-fetch", .threads = 2, .queue_capacity = 4}) {
  OpenNamespace(options_.connect_deadline);
}

PrefixSession::~PrefixSession() { fetch_thread_.Stop(); }

void PrefixSession::OpenNamespace(Duration deadline) {
  auto opened = client_.OpenNamespace(spec_, {.deadline = deadline, .trace = {}});
  if (!opened.ok()) {
    log::Warn("cache_namespace_not_open", {{"error", ToString(opened.status())}});
    return;
  }
  {
    MutexLock lock(mu_);
    opened_in_session_ = client_.GetStats().sessions;
  }
  for (const auto& similar : opened->differs) {
    // Most likely a changed setting: without this it would look like an empty cache.
    log::Warn("cache_namespace_differs", {{"field", similar.difference.field},
                                          {"stored", similar.difference.stored},
                                          {"requested", similar.difference.requested},
                                          {"stored_blocks", log::Num(similar.stored_blocks)}});
  }
}

void PrefixSession::OpenAgainAfterReconnect() {
  {
    MutexLock lock(mu_);
    const uint64_t session = client_.GetStats().sessions;
    if (opened_in_session_ == session || opening_) return;
    opening_ = true;
  }
  // The client has opened the namespace by itself; this asks what differs, to tell people.
  const Status posted = fetch_thread_.Post([this] {
    OpenNamespace(options_.connect_deadline);
    MutexLock lock(mu_);
    opening_ = false;
  });
  if (!posted.ok()) {
    MutexLock lock(mu_);
    opening_ = false;
  }
}

std::vector<BlockKey> PrefixSession::Keys(std::span<const int32_t> tokens) const {
  return BlockKeyChain(fingerprint_).Keys(tokens, spec_.layout.block_tokens);
}

PrefixSession::Match PrefixSession::Lookup(std::span<const BlockKey> keys, double prefill_speed,
                                           const std::string& trace) {
  const TimePoint start = SteadyClock::Get().Now();
  client::MatchOptions ask;
  ask.deadline = options_.match_deadline;
  ask.prefill_tokens_per_second = prefill_speed;
  ask.trace = trace;
  auto outcome = client_.Match(fingerprint_, keys, ask);
  Match match;
  match.seconds = Seconds(SteadyClock::Get().Now() - start);
  if (outcome.ok()) {
    match.blocks = std::min(outcome->matched_blocks, static_cast<uint32_t>(keys.size()));
    match.reason = match.blocks == keys.size() ? MissReason::kNone : FromClient(outcome->miss_reason);
    match.lease_ = std::make_unique<Match::Lease>(std::move(outcome->lease));
    if (match.blocks < keys.size()) OpenAgainAfterReconnect();
  } else {
    match.reason = ReasonOf(outcome.status());
    log::Debug("cache_match_failed", {{"trace", trace}, {"error", ToString(outcome.status())}});
  }
  MutexLock lock(mu_);
  ++totals_.matches;
  totals_.matched_blocks += match.blocks;
  return match;
}

std::unique_ptr<PrefixFetch> PrefixSession::Fetch(Match match, KvSequence& sequence,
                                                  double recompute_seconds,
                                                  const std::string& trace) {
  CAIRN_CHECK(match.blocks > 0 && match.lease_ != nullptr &&
              sequence.page_count() >= static_cast<int64_t>(match.blocks));
  Duration stall = options_.stall_deadline;
  Duration limit = kUnknownFetchLimit;
  if (recompute_seconds > 0) {
    const auto recompute =
        std::chrono::duration_cast<Duration>(std::chrono::duration<double>(recompute_seconds));
    stall = std::max(stall, std::min<Duration>(recompute / 4, options_.max_stall));
    limit = std::max<Duration>(recompute, kMinFetchLimit);
  }
  const FetchProgress::Shape shape{match.blocks, static_cast<uint32_t>(kv_.layers),
                                   static_cast<uint32_t>(kv_.kv_heads)};
  auto state = std::make_shared<PrefixFetch::State>(
      std::move(match.lease_->lease), shape, SteadyClock::Get().Now(), stall, limit);
  client::FetchOptions fetch;
  fetch.progress = stall;
  fetch.deadline = limit;
  fetch.cancel = state->stop.get_token();
  fetch.trace = trace;
  const Status posted = fetch_thread_.Post([this, state, fetch, &sequence] {
    PageSink sink(kv_, sequence, state->progress);
    const client::FetchRange range{.block_begin = 0, .block_end = static_cast<uint32_t>(
                                                         state->progress.blocks())};
    const Status status = client_.Fetch(state->lease, range, sink, fetch);
    if (!status.ok() && status.code() != StatusCode::kCancelled) {
      log::Debug("cache_fetch_failed", {{"trace", fetch.trace}, {"error", ToString(status)}});
    }
    state->lease.Release();
    // Last: from here on the engine may give the pages to somebody else.
    state->progress.Ended(ReasonOf(status));
  });
  if (!posted.ok()) state->progress.Ended(MissReason::kUnavailable);
  return std::unique_ptr<PrefixFetch>(new PrefixFetch(*this, std::move(state)));
}

void PrefixSession::CountMissed(MissReason reason, uint64_t blocks) {
  MutexLock lock(mu_);
  totals_.missed_blocks[static_cast<size_t>(reason)] += blocks;
}

PrefixSession::Stats PrefixSession::GetStats() const {
  const client::ClientStats client = client_.GetStats();
  MutexLock lock(mu_);
  Stats stats = totals_;
  stats.connected = client.connected;
  stats.breaker_open = client.breaker != client::BreakerState::kClosed;
  return stats;
}

PrefixFetch::PrefixFetch(PrefixSession& session, std::shared_ptr<State> state)
    : session_(session), state_(std::move(state)) {}

PrefixFetch::~PrefixFetch() {
  if (!finished_) StopAndWait();
}

void PrefixFetch::StopAndWait() {
  state_->stop.request_stop();
  state_->progress.WaitEnded();
  finished_ = true;
}

Status PrefixFetch::WaitLayer(int layer) {
  return state_->progress.WaitLayer(static_cast<uint32_t>(layer));
}

PrefixFetch::Outcome PrefixFetch::Finish() {
  state_->progress.WaitDone();
  StopAndWait();
  Outcome outcome;
  outcome.blocks = state_->progress.CompletePrefix();
  outcome.reason = state_->progress.Reason();
  outcome.bytes = state_->progress.bytes();
  outcome.seconds = Seconds(state_->progress.last_arrival() - state_->start);
  MutexLock lock(session_.mu_);
  session_.totals_.fetched_blocks += outcome.blocks;
  session_.totals_.abandoned_blocks += state_->progress.blocks() - outcome.blocks;
  session_.totals_.fetched.host += outcome.bytes.host;
  session_.totals_.fetched.disk += outcome.bytes.disk;
  return outcome;
}

}  // namespace cairn::worker
