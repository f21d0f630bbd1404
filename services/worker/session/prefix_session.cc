#include "services/worker/session/prefix_session.h"

#include <algorithm>
#include <atomic>
#include <stop_token>
#include <utility>

#include "cairn/client/cache_client.h"
#include "common/log/log.h"
#include "services/worker/session/page_sink.h"

namespace cairn::worker {
namespace {

// A fetch may always take this long: estimates of short recomputations are rough.
constexpr std::chrono::milliseconds kMinFetchLimit{500};
// Limit for a fetch while the worker does not know its prefill speed.
constexpr std::chrono::seconds kUnknownFetchLimit{30};
// Limit for one question that waits for blocks: after it the task asks whether anybody still wants
// them.
constexpr std::chrono::milliseconds kAwaitSlice{200};
// An announcement ends with its blocks, or with the session: this is only for a worker that hangs.
constexpr std::chrono::seconds kAnnounced{600};

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

}  // namespace

struct PrefixSession::Match::Lease {
  client::Lease lease;
  TierKind tier = TierKind::kHost;  // The tier that most bytes lie in.
  bool from_disk = false;           // Some of them come from disk.
  // Until the node could send the first and the last byte; 0 if it did not say.
  double node_first_seconds = 0;
  double node_last_seconds = 0;
};

PrefixSession::Match::Match() = default;
PrefixSession::Match::~Match() = default;
PrefixSession::Match::Match(Match&&) noexcept = default;
PrefixSession::Match& PrefixSession::Match::operator=(Match&&) noexcept = default;

struct PrefixFetchState {
  PrefixFetchState(const Clock& clock, Wakeup& wakeup, PrefixSession::Match::Lease held,
                   uint32_t heads, const FetchDeadlines& until, const FetchPilot::Setup& setup,
                   const PrefillModel& prefill)
      : lease(std::move(held.lease)),
        tier(held.tier),
        deadlines(until),
        progress(clock, wakeup, heads, until, setup, prefill) {}
  client::Lease lease;
  const TierKind tier;
  const FetchDeadlines deadlines;
  client::Path path = client::Path::kGrpc;
  FetchProgress progress;
  std::vector<uint64_t> stamps;  // Stamps of the pages, for a loader. Constant.
  // PageSink::as_pushed of all sinks. Read after the fetch has ended.
  std::atomic<bool> as_pushed{true};

  // The token of a new call to the node.
  std::stop_token BeginCall() {
    MutexLock lock(mu);
    call = std::stop_source();
    if (stopped) call.request_stop();
    return call.get_token();
  }
  // Makes the client return from the call under way; `all`: and from all that follow.
  void CancelCall(bool all) {
    MutexLock lock(mu);
    stopped = stopped || all;
    call.request_stop();
  }

  Mutex mu;
  std::stop_source call ABSL_GUARDED_BY(mu);
  bool stopped ABSL_GUARDED_BY(mu) = false;
};

struct AwaitedState {
  AwaitedState(Wakeup& wakeup_in, uint32_t held_in, uint32_t at_least_in, TimePoint until_in)
      : wakeup(wakeup_in), held(held_in), at_least(at_least_in), until(until_in) {}
  Wakeup& wakeup;
  const uint32_t held;
  const uint32_t at_least;
  const TimePoint until;

  Mutex mu;
  bool stopped ABSL_GUARDED_BY(mu) = false;
  bool done ABSL_GUARDED_BY(mu) = false;
  uint32_t blocks ABSL_GUARDED_BY(mu) = 0;
  MissReason reason ABSL_GUARDED_BY(mu) = MissReason::kNone;

  void Settle(uint32_t blocks_in, MissReason reason_in) {
    MutexLock lock(mu);
    done = true;
    blocks = blocks_in;
    reason = reason_in;
    wakeup.Notify();
  }
};

PrefixSession::PrefixSession(const Dependencies& dependencies, CheckedNamespace ns,
                             const KvLayout& kv, const Options& options)
    : client_(dependencies.client),
      ns_(std::move(ns)),
      kv_(kv),
      codec_(dependencies.codec),
      options_(options),
      clock_(dependencies.clock),
      executor_(dependencies.executor),
      loader_(dependencies.loader),
      wakeup_(dependencies.wakeup != nullptr ? *dependencies.wakeup : own_wakeup_) {
  OpenNamespace(options_.connect_deadline);
}

PrefixSession::~PrefixSession() {
  // Fetches have ended with their PrefixFetch.
  MutexLock lock(mu_);
  opened_.Wait(mu_, clock_,
               [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !opening_ && awaits_ == 0; });
}

std::shared_ptr<const void> PrefixSession::Announce(std::span<const BlockKey> keys,
                                                    const std::string& trace) {
  client::MatchOptions ask;
  ask.deadline = options_.match_deadline;
  ask.lease_ttl = kAnnounced;
  ask.announce = true;
  ask.trace = trace;
  auto outcome = client_.Match(ns_.fingerprint, keys, ask);
  if (!outcome.ok()) {
    log::Debug("cache_announce_failed", {{"trace", trace}, {"error", ToString(outcome.status())}});
    return nullptr;
  }
  return std::make_shared<const client::Lease>(std::move(outcome->lease));
}

std::unique_ptr<AwaitedBlocks> PrefixSession::Await(std::span<const BlockKey> keys, uint32_t held,
                                                    uint32_t at_least, TimePoint until,
                                                    const std::string& trace) {
  auto state = std::make_shared<AwaitedState>(wakeup_, held, at_least, until);
  {
    MutexLock lock(mu_);
    ++awaits_;
  }
  const Status posted =
      executor_.Post([this, state, wanted = std::vector(keys.begin(), keys.end()), trace] {
        RunAwait(*state, wanted, trace);
        // Notified under the lock, as above.
        MutexLock lock(mu_);
        --awaits_;
        opened_.NotifyAll();
      });
  if (!posted.ok()) {
    state->Settle(held, MissReason::kUnavailable);
    MutexLock lock(mu_);
    --awaits_;
  }
  return std::make_unique<AwaitedBlocks>(std::move(state));
}

void PrefixSession::RunAwait(AwaitedState& state, std::span<const BlockKey> keys,
                             const std::string& trace) {
  client::MatchOptions ask;
  ask.deadline = options_.match_deadline;
  ask.lease = false;
  ask.wait_blocks = state.at_least;
  ask.trace = trace;
  uint32_t blocks = state.held;
  MissReason reason = MissReason::kIncomplete;
  while (blocks <= state.held && reason == MissReason::kIncomplete) {
    const Duration left = state.until - clock_.Now();
    {
      MutexLock lock(state.mu);
      if (state.stopped || left <= Duration(0)) break;
    }
    ask.wait = std::min<Duration>(left, kAwaitSlice);
    const TimePoint asked = clock_.Now();
    const auto outcome = client_.Match(ns_.fingerprint, keys, ask);
    reason = outcome.ok() ? outcome->miss_reason : ReasonOf(outcome.status());
    if (outcome.ok()) blocks = std::max(blocks, outcome->matched_blocks);
    // A node that does not wait, or lets too many wait already, would be asked without end.
    if (clock_.Now() - asked < ask.wait / 2) break;
  }
  state.Settle(blocks, reason);
}

AwaitedBlocks::~AwaitedBlocks() {
  MutexLock lock(state_->mu);
  state_->stopped = true;
}

bool AwaitedBlocks::PollDone() const {
  MutexLock lock(state_->mu);
  return state_->done;
}

uint32_t AwaitedBlocks::blocks() const {
  MutexLock lock(state_->mu);
  return state_->blocks;
}

MissReason AwaitedBlocks::reason() const {
  MutexLock lock(state_->mu);
  return state_->reason;
}

void PrefixSession::OpenNamespace(Duration deadline) {
  auto opened = client_.OpenNamespace(ns_.spec, {.deadline = deadline, .trace = {}});
  if (!opened.ok()) {
    log::Warn("cache_namespace_not_open", {{"error", ToString(opened.status())}});
    return;
  }
  {
    MutexLock lock(mu_);
    opened_in_session_ = client_.GetStats().sessions;
    differs_ = std::move(opened->differs);
  }
  if (opened->created) WarnOfWhatDiffers();
}

// When the node has nothing of this namespace, but of another one that differs in one field. Most
// likely a setting was changed: without the warning it would look like an empty cache. A worker
// whose own blocks are there has only neighbours, such as the same model in another recipe.
void PrefixSession::WarnOfWhatDiffers() {
  std::vector<OpenedNamespace::Similar> differs;
  {
    MutexLock lock(mu_);
    differs.swap(differs_);
  }
  for (const auto& similar : differs) {
    if (similar.stored_blocks == 0) continue;
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
  const Status posted = executor_.Post([this] {
    OpenNamespace(options_.connect_deadline);
    // Notified under the lock: the session may be destroyed as soon as it sees the end.
    MutexLock lock(mu_);
    opening_ = false;
    opened_.NotifyAll();
  });
  if (!posted.ok()) {
    MutexLock lock(mu_);
    opening_ = false;
  }
}

std::vector<BlockKey> PrefixSession::Keys(std::span<const int32_t> tokens) const {
  return BlockKeyChain(ns_.fingerprint).Keys(tokens, ns_.spec.layout.block_tokens);
}

std::vector<BlockKey> PrefixSession::KeysOverDecoded(std::span<const int32_t> tokens,
                                                     std::span<const BlockKey> path) const {
  const size_t block_tokens = ns_.spec.layout.block_tokens;
  std::vector<BlockKey> keys(path.begin(), path.end());
  BlockKeyChain chain(ns_.fingerprint);
  BlockKey parent = Sha256().Update("over decoded").Update(path.back().View()).Finish();
  for (size_t at = path.size() * block_tokens; at + block_tokens <= tokens.size();
       at += block_tokens) {
    parent = chain.Next(parent, tokens.subspan(at, block_tokens));
    keys.push_back(parent);
  }
  return keys;
}

PrefixSession::Match PrefixSession::Lookup(std::span<const BlockKey> keys, double prefill_speed,
                                           const std::string& trace, NextUse next) {
  const TimePoint start = clock_.Now();
  client::MatchOptions ask;
  ask.deadline = options_.match_deadline;
  ask.prefill_tokens_per_second = prefill_speed;
  ask.trace = trace;
  ask.next = next;
  auto outcome = client_.Match(ns_.fingerprint, keys, ask);
  Match match;
  match.seconds = Seconds(clock_.Now() - start);
  if (outcome.ok()) {
    match.blocks = std::min(outcome->matched_blocks, static_cast<uint32_t>(keys.size()));
    match.reason = match.blocks == keys.size() ? MissReason::kNone : outcome->miss_reason;
    match.lease_ = std::make_unique<Match::Lease>();
    NoteTiers(outcome->tiers, match.lease_.get());
    match.lease_->lease = std::move(outcome->lease);
    if (match.reason == MissReason::kFingerprint) WarnOfWhatDiffers();
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

void PrefixSession::NoteTiers(std::span<const client::TierRun> runs, Match::Lease* lease) {
  ByTier<uint64_t> bytes;
  for (const client::TierRun& run : runs) {
    bytes[run.tier.value_or(TierKind::kHost)] += run.bytes;
  }
  lease->from_disk = bytes[TierKind::kDisk] > 0;
  lease->tier = TierKind::kHost;
  for (const TierKind tier : kTiersByRank) {
    if (bytes[tier] > bytes[lease->tier]) lease->tier = tier;
  }
  if (runs.empty()) return;
  const client::TierRun& first = runs.front();
  // Blocks in memory can be sent when the run's turn comes; from disk the first block comes first.
  lease->node_first_seconds =
      first.tier == TierKind::kDisk ? first.seconds / std::max(1u, first.blocks) : first.seconds;
  lease->node_last_seconds = runs.back().seconds;
}

FetchPilot::Setup PrefixSession::PilotSetup(const Match& match, const FetchWanted& wanted) const {
  FetchPilot::Setup setup;
  setup.blocks = match.blocks;
  setup.layers = static_cast<uint32_t>(kv_.layers);
  setup.cell_bytes = codec_.typical_slice_bytes(match.lease_->tier == TierKind::kDisk);
  setup.block_tokens = kv_.block_tokens;
  setup.prompt_tokens = std::max(wanted.prompt_tokens, match.blocks * setup.block_tokens);
  setup.chunk_tokens = wanted.chunk_tokens;
  setup.node_first_seconds = match.lease_->node_first_seconds;
  setup.node_last_seconds = match.lease_->node_last_seconds;
  setup.overlap = wanted.overlap;
  setup.choose = wanted.choose;
  setup.split = !match.lease_->from_disk;
  MutexLock lock(mu_);
  setup.rate = fetch_model_.Rate(match.lease_->tier);
  setup.share_beside = fetch_model_.share_beside();
  setup.slowdown = fetch_model_.slowdown();
  return setup;
}

FetchDeadlines PrefixSession::DeadlinesOf(uint32_t blocks, const FetchWanted& wanted) const {
  FetchDeadlines deadlines{clock_.Now(), options_.stall_deadline, kUnknownFetchLimit};
  if (!wanted.prefill.known()) return deadlines;
  const auto estimate = [&](int64_t end) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(
        wanted.prefill.RangeSeconds(0, end, std::max<int64_t>(1, wanted.chunk_tokens))));
  };
  const int64_t matched = int64_t{blocks} * kv_.block_tokens;
  const Duration recompute = estimate(matched);
  deadlines.stall =
      std::max<Duration>(deadlines.stall, std::min<Duration>(recompute / 4, options_.max_stall));
  // During a fetch the rest of the prompt is computed: hidden behind that it costs nothing. A
  // caller that lets a node say nothing for a minute does not mean to end its fetch after half a
  // second.
  deadlines.limit = std::max<Duration>(
      {wanted.overlap ? estimate(std::max(wanted.prompt_tokens, matched)) : recompute,
       kMinFetchLimit, options_.stall_deadline});
  return deadlines;
}

Result<std::vector<bool>> PrefixSession::Exist(std::span<const BlockKey> keys,
                                               const std::string& trace) {
  CAIRN_ASSIGN_OR_RETURN(
      const auto tiers,
      client_.Exists(ns_.fingerprint, keys, {.deadline = options_.match_deadline, .trace = trace}));
  std::vector<bool> exist(keys.size(), false);
  for (size_t i = 0; i < std::min(keys.size(), tiers.size()); ++i) exist[i] = tiers[i].has_value();
  return exist;
}

PrefixSession::Brought PrefixSession::Bring(Match match, client::FetchSink& sink,
                                            const FetchWanted& wanted) {
  CAIRN_CHECK(match.blocks > 0 && match.lease_ != nullptr);
  const FetchDeadlines deadlines = DeadlinesOf(match.blocks, wanted);
  client::FetchOptions fetch;
  fetch.progress = deadlines.stall;
  fetch.deadline = deadlines.limit;
  fetch.trace = wanted.trace;
  Brought brought;
  brought.path = client_.GetStats().path;
  const Status status =
      client_.Fetch(match.lease_->lease, {.block_end = match.blocks}, sink, fetch);
  brought.reason = ReasonOf(status);
  brought.seconds = Seconds(clock_.Now() - deadlines.start);
  if (!status.ok()) {
    log::Debug("cache_fetch_failed", {{"trace", wanted.trace}, {"error", ToString(status)}});
  }
  return brought;
}

void PrefixSession::CountFetched(uint64_t used, uint64_t abandoned, const BytesByTier& bytes) {
  MutexLock lock(mu_);
  totals_.fetched_blocks += used;
  totals_.abandoned_blocks += abandoned;
  totals_.fetched += bytes;
}

std::unique_ptr<PrefixFetch> PrefixSession::Fetch(Match match, KvSequence& sequence,
                                                  const FetchWanted& wanted) {
  CAIRN_CHECK(match.blocks > 0 && match.lease_ != nullptr &&
              sequence.page_count() >= static_cast<int64_t>(match.blocks));
  const FetchPilot::Setup setup = PilotSetup(match, wanted);
  const FetchDeadlines deadlines = DeadlinesOf(match.blocks, wanted);
  auto state = std::make_shared<PrefixFetchState>(clock_, wakeup_, std::move(*match.lease_),
                                                  static_cast<uint32_t>(kv_.kv_heads), deadlines,
                                                  setup, wanted.prefill);
  state->path = client_.GetStats().path;
  if (wanted.held > 0) state->progress.Claim(0, wanted.held);
  // Asked for here: while a fetch runs, the sequence is also the engine's thread's.
  for (uint32_t block = 0; loader_ != nullptr && block < match.blocks; ++block) {
    state->stamps.push_back(sequence.PageStamp(block));
  }
  const bool lend = options_.lend && wanted.lend;
  const Status posted = executor_.Post([this, state, &sequence, lend, trace = wanted.trace] {
    RunFetch(*state, sequence, lend, trace);
  });
  if (!posted.ok()) state->progress.Ended(MissReason::kUnavailable);
  return std::unique_ptr<PrefixFetch>(
      new PrefixFetch(*this, sequence, std::move(state), wanted.held));
}

void PrefixSession::RunFetch(PrefixFetchState& state, KvSequence& sequence, bool lend,
                             const std::string& trace) {
  client::FetchOptions fetch;
  fetch.progress = state.deadlines.stall;
  fetch.trace = trace;
  Status status;
  std::optional<FetchPlan::Range> brought_nothing;
  while (status.ok()) {
    const std::optional<FetchPlan::Range> range = state.progress.NextRange();
    // A node that sends nothing, and says that this was all, would be asked without end.
    if (!range || range == brought_nothing) break;
    fetch.deadline = std::max<Duration>(
        state.deadlines.start + state.deadlines.limit - clock_.Now(), Duration(1));
    fetch.cancel = state.BeginCall();
    const uint64_t before = state.progress.bytes().total();
    {
      PageSink sink(kv_, codec_, sequence, state.progress,
                    {.lend = lend, .loader = loader_, .stamps = state.stamps, .clock = &clock_});
      status = client_.Fetch(
          state.lease, {range->block_begin, range->block_end, range->layer_begin, range->layer_end},
          sink, fetch);
      sink.Flush();
      if (!sink.as_pushed()) state.as_pushed.store(false, std::memory_order_relaxed);
    }
    state.progress.CallEnded();
    if (status.code() == StatusCode::kCancelled) {
      status = OkStatus();  // Because of a claim, or NextRange knows that all is over.
      continue;
    }
    if (state.progress.bytes().total() == before) brought_nothing = range;
  }
  if (!status.ok()) {
    log::Debug("cache_fetch_failed", {{"trace", trace}, {"error", ToString(status)}});
  }
  state.lease.Release();
  // Last: from here on the engine may give the pages to somebody else.
  state.progress.Ended(ReasonOf(status));
}

void PrefixSession::ObserveSlowdown(double seconds, double expected_seconds) {
  MutexLock lock(mu_);
  fetch_model_.ObserveSlowdown(seconds, expected_seconds);
}

void PrefixSession::CountMissed(MissReason reason, uint64_t blocks) {
  MutexLock lock(mu_);
  totals_.missed_blocks[static_cast<size_t>(reason)] += blocks;
}

std::string PrefixSession::node_id() const {
  client::ClientStats stats = client_.GetStats();
  return stats.connected ? std::move(stats.home_node_id) : "";
}

PrefixSession::Stats PrefixSession::GetStats() const {
  const client::ClientStats client = client_.GetStats();
  MutexLock lock(mu_);
  Stats stats = totals_;
  stats.connected = client.connected;
  stats.breaker_open = client.breaker != client::BreakerState::kClosed;
  return stats;
}

PrefixFetch::PrefixFetch(PrefixSession& session, KvSequence& sequence, std::shared_ptr<State> state,
                         uint32_t held)
    : session_(session), sequence_(sequence), state_(std::move(state)), held_(held) {}

PrefixFetch::~PrefixFetch() {
  if (!finished_) StopAndWait();
}

void PrefixFetch::Cancel() {
  state_->progress.Stop();
  state_->CancelCall(/*all=*/true);
}

void PrefixFetch::StopAndWait() {
  Cancel();
  state_->progress.WaitEnded();
  finished_ = true;
}

FetchProgress::Step PrefixFetch::Decide(uint32_t front) { return state_->progress.Decide(front); }

bool PrefixFetch::Claim(uint32_t begin, uint32_t end) {
  const auto cancel = [this] { state_->CancelCall(/*all=*/false); };
  if (!state_->progress.Claim(begin, end, cancel)) return false;
  for (uint32_t block = begin; block < end; ++block) sequence_.TakeBack(block);
  return true;
}

void PrefixFetch::Computed(double seconds, double expected_seconds) {
  if (state_->progress.Asking()) session_.ObserveSlowdown(seconds, expected_seconds);
}

void PrefixFetch::SetComputing(bool computing) { state_->progress.SetComputing(computing); }

Status PrefixFetch::WaitLayer(int layer, uint32_t front, const FetchInterrupt& interrupt) {
  return state_->progress.WaitLayer(static_cast<uint32_t>(layer), front, interrupt);
}

bool PrefixFetch::TurnedBack() const { return state_->progress.TurnedBack(); }
void PrefixFetch::FetchTheRest() { state_->progress.FetchTheRest(); }
bool PrefixFetch::PollDone() { return state_->progress.PollDone(); }
TimePoint PrefixFetch::PollDeadline() const { return state_->progress.PollDeadline(); }
bool PrefixFetch::Broken() const { return state_->progress.Broken(); }

PrefixFetch::Outcome PrefixFetch::Finish(bool wait, const FetchInterrupt& interrupt) {
  if (wait) state_->progress.WaitDone(interrupt);
  StopAndWait();
  const FetchProgress& progress = state_->progress;
  Outcome outcome;
  outcome.blocks = progress.CompletePrefix();
  outcome.fetched_blocks = progress.FetchedBlocks();
  outcome.reason = progress.Reason();
  outcome.bytes = progress.bytes();
  outcome.as_pushed = state_->as_pushed.load(std::memory_order_relaxed);
  outcome.path = state_->path;
  outcome.start = state_->deadlines.start;
  outcome.seconds = Seconds(progress.last_arrival() - state_->deadlines.start);
  outcome.layers = progress.layer_times();
  session_.CountFetched(outcome.fetched_blocks, progress.blocks() - outcome.blocks, outcome.bytes);
  MutexLock lock(session_.mu_);
  session_.fetch_model_.Observe(progress.Sample(state_->tier));
  session_.totals_.chosen_blocks += outcome.blocks - outcome.fetched_blocks - held_;
  return outcome;
}

}  // namespace cairn::worker
