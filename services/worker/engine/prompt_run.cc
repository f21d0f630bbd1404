#include "services/worker/engine/prompt_run.h"

#include <algorithm>
#include <utility>

namespace cairn::worker {
namespace {

// Questions to the node for blocks that were computed over decoded ones. A conversation adds one
// with each turn whose blocks are still there.
constexpr int kMostFurtherMatches = 8;
// Blocks that are fetched at a time of what another worker computes, unless fewer have come for
// long. Few, since tokens of other requests wait while they are copied.
constexpr uint32_t kAwaitedPiece = 2;

}  // namespace

PromptRun::PromptRun(PromptKv& kv, PromptKv::Request request)
    : kv_(kv),
      request_(std::move(request)),
      sequence_(*request_.sequence),
      use_cache_(request_.use_cache && kv.session_ != nullptr),
      total_(std::ssize(request_.tokens)),
      held_(sequence_.length()),
      start_(kv.clock_.Now()),
      await_until_(start_ + request_.await) {
  pause_.emplace(request_.background ? nullptr : kv.push_);
  if (use_cache_) {
    keys_ = request_.keys.empty() ? kv.session_->Keys(request_.tokens) : request_.keys;
  }
  wanted_ = keys_;
  // The last token is always computed when its logits are wanted.
  if (request_.logits != nullptr) {
    wanted_ =
        wanted_.first(std::min(keys_.size(), static_cast<size_t>((total_ - 1) / kv.block_tokens_)));
  }
  block_seconds_.resize(static_cast<size_t>((total_ + kv.block_tokens_ - 1) / kv.block_tokens_));
  adopted_.resize(block_seconds_.size());
  if (request_.use_cache && !request_.background && request_.keys.empty()) {
    // All of the pool is KV of one model, so without a namespace any root will do.
    names_ = use_cache_ ? keys_
                        : BlockKeyChain(Digest()).Keys(request_.tokens,
                                                       static_cast<uint32_t>(kv.block_tokens_));
    most_adopted_ = request_.logits == nullptr
                        ? names_.size()
                        : static_cast<size_t>((total_ - 1) / kv.block_tokens_);
  }
  if (use_cache_ && kv.selections_ != nullptr && held_ == 0 && kv.watched_ == nullptr &&
      request_.keys.empty()) {
    kv.selections_->Begin(request_.tokens, request_.prefix_end,
                          std::ssize(wanted_) * kv.block_tokens_, sequence_);
    kv.watched_ = this;
    selecting_ = true;
  }
}

PromptRun::~PromptRun() {
  Unclaim();
  if (kv_.watched_ != this) return;
  kv_.selections_->Drop();
  kv_.watched_ = nullptr;
}

Step PromptRun::Next(int64_t max_rows, bool alone) {
  // With company there is always some prompt under way: pushes would never go out.
  if (!alone) pause_.reset();
  switch (state_) {
    case State::kMatch:
      Match(alone);
      return {Step::Kind::kWorked};
    case State::kAwaiting:
      return NextAwaiting(alone);
    case State::kFetching:
      return NextFetching();
    case State::kChunk:
      return NextChunk(max_rows);
    case State::kFinished:
      break;
  }
  return {Step::Kind::kFinished};
}

Step PromptRun::NextFetching() {
  if (overlap_) {
    if (Overlap()) SettleFetch(/*wait=*/true);
    return {Step::Kind::kWorked};
  }
  const bool polls = request_.company != nullptr;
  if (polls && !fetch_->PollDone()) {
    if (!request_.stop || !request_.stop()) return {Step::Kind::kWaiting};
    fetch_->Cancel();
  }
  SettleFetch(/*wait=*/!polls);
  return {Step::Kind::kWorked};
}

bool PromptRun::WaitBriefly() {
  if (awaited_ != nullptr) {
    awaited_->WaitBriefly();
    return true;
  }
  if (fetch_ != nullptr) fetch_->WaitBriefly();
  return fetch_ != nullptr;
}

bool PromptRun::MayAwait(uint32_t held, MissReason reason) const {
  return use_cache_ && held < wanted_.size() && reason == MissReason::kIncomplete &&
         kv_.clock_.Now() < await_until_;
}

void PromptRun::StartAwait(uint32_t held) {
  held_blocks_ = held;
  pause_.reset();  // This may take long.
  const auto all = static_cast<uint32_t>(wanted_.size());
  // A lossy prefix is fetched whole: see StartFetch.
  const bool whole = kv_.session_->codec().lossy();
  awaited_ = kv_.session_->Await(wanted_, held, whole ? all : std::min(all, held + kAwaitedPiece),
                                 await_until_, request_.trace);
  state_ = State::kAwaiting;
}

Step PromptRun::NextAwaiting(bool alone) {
  const bool stopped = request_.stop && request_.stop();
  if (!stopped && !awaited_->PollDone()) return {Step::Kind::kWaiting};
  const bool more = !stopped && awaited_->blocks() > held_blocks_;
  report_.miss_reason = awaited_->reason();
  awaited_.reset();
  if (more) {
    Match(alone);
  } else {
    kv_.session_->CountMissed(report_.miss_reason, wanted_.size() - held_blocks_);
    BeginChunks();
  }
  return {Step::Kind::kWorked};
}

void PromptRun::Announce() {
  if (!request_.hand_over) return;
  if (use_cache_ && !wanted_.empty()) {
    promise_ = kv_.session_->Announce(wanted_, request_.trace);
  }
  if (request_.announced) request_.announced();
}

void PromptRun::PushNow(int64_t end) {
  // Which lineage a lossy prompt has is known at its end. Blocks that were computed over memory
  // that the node has taken back are computed again.
  if (!request_.hand_over || kv_.lossy() || end <= pushed_ ||
      sequence_.FirstBrokenLoan() != sequence_.page_count()) {
    return;
  }
  kv_.Push(*this, static_cast<uint32_t>(pushed_));
  pushed_ = end;
}

void PromptRun::Match(bool alone) {
  if (wanted_.empty()) {
    Announce();
    return BeginChunks();
  }
  PrefixSession& session = *kv_.session_;
  const auto here = static_cast<size_t>(names_.empty() ? 0 : sequence_.Published(wanted_));
  // The node's decoded blocks go first, so only it can say what a lossy recipe shares.
  if (here == wanted_.size() && !session.codec().lossy()) {
    Announce();
    return BeginChunks();
  }
  PrefixSession::Match match =
      session.Lookup(wanted_, kv_.prefiller_.tokens_per_second(), request_.trace, request_.next);
  Announce();
  report_.match_seconds += match.seconds;
  report_.miss_reason = match.reason;
  report_.timeline.push_back({TimelineSpan::Kind::kMatch, TimelineSpan::kAllLayers, 0, match.blocks,
                              0, Seconds(kv_.clock_.Now() - start_)});
  exact_ = match.blocks;
  if (session.codec().lossy() && match.blocks > 0) MatchFurther(&match);
  matched_ = match.blocks;
  if (held_ > 0) {
    // Idle work on pages that a push may be reading: they are not fetched over.
    return matched_ < wanted_.size() ? BeginChunks() : Finish();
  }
  const bool lossy = session.codec().lossy();
  if (MayAwait(matched_, match.reason) && (matched_ <= held_blocks_ || lossy)) {
    return StartAwait(lossy ? 0 : std::max(matched_, held_blocks_));
  }
  if (matched_ <= held_blocks_ || (matched_ <= here && !lossy)) {
    session.CountMissed(match.reason, wanted_.size() - here);
    return BeginChunks();
  }
  StartFetch(std::move(match), alone);
}

void PromptRun::MatchFurther(PrefixSession::Match* match) {
  path_.assign(keys_.begin(), keys_.begin() + match->blocks);
  for (int i = 0; i < kMostFurtherMatches && match->blocks < wanted_.size(); ++i) {
    const std::vector<BlockKey> keys = kv_.session_->KeysOverDecoded(request_.tokens, path_);
    PrefixSession::Match further = kv_.session_->Lookup(
        std::span(keys).first(wanted_.size()), kv_.prefiller_.tokens_per_second(), request_.trace);
    if (further.blocks <= match->blocks) return;
    *match = std::move(further);
    path_.assign(keys.begin(), keys.begin() + match->blocks);
  }
}

void PromptRun::StartFetch(PrefixSession::Match match, bool alone) {
  selecting_ = false;
  const PrefixSession::Options& options = kv_.session_->options();
  // Pieces of what another worker computes are only fetched; the last one overlaps, too.
  const bool pieces = request_.await > Duration(0);
  overlap_ = alone && options.overlap && matched_ * kv_.block_tokens_ < total_ &&
             !request_.hand_over && (!pieces || matched_ == wanted_.size());
  choose_ = options.choose && overlap_ && !request_.background && !pieces && request_.keys.empty();
  // Where parts of a lossy prefix are computed instead of fetched, what follows has bytes that
  // depend on where they meet, and is not pushed. So nothing is chosen while there is more to push
  // than the last token's block.
  if (kv_.session_->codec().lossy() && matched_ < wanted_.size()) choose_ = false;
  PrefixSession::FetchWanted wanted;
  wanted.prompt_tokens = total_;
  wanted.chunk_tokens = kv_.prefiller_.chunk_tokens();
  wanted.prefill = kv_.prefiller_.model();
  wanted.overlap = overlap_;
  wanted.choose = choose_;
  wanted.lend = !pieces;
  wanted.held = held_blocks_;
  front_ = held_blocks_;
  wanted.trace = request_.trace;
  fetch_ = kv_.session_->Fetch(std::move(match), sequence_, wanted);
  state_ = State::kFetching;
}

bool PromptRun::Overlap() {
  do {
    if (choose_) report_.status = ComputeFront();
    if (report_.status.ok()) report_.status = ComputeRest();
  } while (report_.status.code() == StatusCode::kAborted && !gave_way_ && fetch_->TurnedBack());
  if (gave_way_ && report_.status.code() == StatusCode::kAborted) {
    overlap_ = false;
    fetch_->FetchTheRest();
    return false;
  }
  if (report_.status.code() != StatusCode::kCancelled) return true;
  // Not worth waiting for; what has been computed may stand on KV that never came.
  fetch_.reset();
  sequence_.SetLength(0);
  Finish();
  return false;
}

void PromptRun::SettleFetch(bool wait) {
  const bool done = overlap_ && report_.status.ok();
  const PrefixFetch::Outcome outcome = fetch_->Finish(wait && !done);
  fetch_.reset();
  NoteFetched(outcome);
  uint32_t good = outcome.blocks;
  if (done && good == matched_) {
    const int64_t broken = sequence_.FirstBrokenLoan();
    if (broken == sequence_.page_count()) {
      Publish(0, front_);
      Publish(matched_, total_ / kv_.block_tokens_);
      return Finish();
    }
    // The node took its memory back while it was read.
    good = static_cast<uint32_t>(broken);
    report_.miss_reason = MissReason::kUnavailable;
    report_.fetched_blocks = std::min(report_.fetched_blocks, good);
    report_.chosen_blocks = good - report_.fetched_blocks;
  }
  // Nothing was computed yet, or it stands on KV that did not come.
  for (int64_t page = good; page < sequence_.page_count(); ++page) sequence_.TakeBack(page);
  sequence_.SetLength(good * kv_.block_tokens_);
  if (request_.hand_over) pushed_ = good;
  if (good == matched_ && MayAwait(good, MissReason::kIncomplete)) return StartAwait(good);
  // Blocks that are computed now may read lent pages, too.
  check_loans_ = good * kv_.block_tokens_;
  BeginChunks();
}

void PromptRun::NoteFetched(const PrefixFetch::Outcome& outcome) {
  report_.fetched += outcome.bytes;
  report_.path = outcome.path;
  report_.fetch_seconds += outcome.seconds;
  report_.fetched_blocks = held_blocks_ + outcome.fetched_blocks;
  report_.chosen_blocks = outcome.blocks - report_.fetched_blocks;
  as_pushed_ = outcome.as_pushed;
  if (kv_.session_->codec().lossy() && outcome.fetched_blocks > 0) names_.clear();
  const double offset = Seconds(outcome.start - start_);
  for (size_t layer = 0; layer < outcome.layers.size(); ++layer) {
    const FetchProgress::LayerTimes& times = outcome.layers[layer];
    if (times.last == 0) continue;
    report_.timeline.push_back({TimelineSpan::Kind::kFetch, static_cast<int32_t>(layer), front_,
                                matched_, offset + times.first, offset + times.last});
  }
  if (outcome.blocks < matched_) {
    report_.miss_reason = outcome.reason;
  } else if (outcome.fetched_blocks == 0 && first_target_.value_or(0) < matched_) {
    report_.miss_reason = MissReason::kDeadline;  // Computing was faster, against expectation.
  }
  if (outcome.blocks < wanted_.size()) {
    kv_.session_->CountMissed(report_.miss_reason, wanted_.size() - outcome.blocks);
  }
}

Status PromptRun::ComputeFront() {
  const Prefiller& prefiller = kv_.prefiller_;
  while (true) {
    const FetchProgress::Step step = fetch_->Decide(front_);
    front_ = step.front;
    if (!first_target_) first_target_ = step.target;
    if (step.target <= front_) return OkStatus();
    if (GiveWay()) return Status(StatusCode::kAborted, "other requests have come");
    const int64_t begin = front_ * kv_.block_tokens_;
    // When everything is computed, a chunk may reach into the rest of the prompt.
    const int64_t most = step.target == matched_ ? total_ : step.target * kv_.block_tokens_;
    const int64_t end = std::min(begin + prefiller.chunk_tokens(), most);
    const auto front_end =
        static_cast<uint32_t>(std::min<int64_t>(matched_, end / kv_.block_tokens_));
    if (!fetch_->Claim(front_, front_end)) return OkStatus();
    sequence_.SetLength(begin);
    fetch_->SetComputing(true);
    const TimePoint start = kv_.clock_.Now();
    const Status status = Prefill(end, nullptr);
    fetch_->Computed(Seconds(kv_.clock_.Now() - start),
                     prefiller.model().Seconds(begin, end - begin));
    fetch_->SetComputing(false);
    CAIRN_RETURN_IF_ERROR(status);
    front_ = front_end;
    if (end > matched_ * kv_.block_tokens_) return OkStatus();
  }
}

bool PromptRun::GiveWay() {
  gave_way_ = request_.company && request_.company();
  return gave_way_;
}

Status PromptRun::ComputeRest() {
  const int64_t begin = matched_ * kv_.block_tokens_;
  if (front_ == matched_) {
    fetch_->Cancel();  // Nothing of it is wanted any more.
    sequence_.SetLength(std::max(begin, sequence_.length()));
    return Prefill(total_, nullptr);
  }
  if (fetch_->Broken()) return Errorf(StatusCode::kAborted, "fetch: over");
  sequence_.SetLength(begin);
  const auto end_block =
      static_cast<uint32_t>((total_ + kv_.block_tokens_ - 1) / kv_.block_tokens_);
  TimePoint computing = kv_.clock_.Now();
  const auto span = [&](int layer) {
    report_.timeline.push_back({TimelineSpan::Kind::kCompute, layer, matched_, end_block,
                                Seconds(computing - start_), Seconds(kv_.clock_.Now() - start_)});
  };
  int last = 0;
  const size_t spans = report_.timeline.size();
  const Status status = Prefill(total_, [&](int layer) -> Status {
    if (layer > 0) span(layer - 1);
    last = layer;
    if (request_.stop && request_.stop()) {
      return Status(StatusCode::kCancelled, "prefill stopped");
    }
    const Status there = fetch_->WaitLayer(layer, front_, [this] { return GiveWay(); });
    computing = kv_.clock_.Now();
    return there;
  });
  if (status.ok()) {
    span(last);
  } else {
    report_.timeline.resize(spans);  // Thrown away.
  }
  return status;
}

Status PromptRun::Prefill(int64_t end, const std::function<Status(int)>& before_layer) {
  const int64_t begin = sequence_.length();
  if (begin == end) return OkStatus();
  Prefiller::Job job;
  job.tokens = request_.tokens.first(static_cast<size_t>(end));
  job.sequence = &sequence_;
  job.logits = end == total_ ? request_.logits : nullptr;
  job.chunk_tokens = request_.background ? kv_.block_tokens_ : 0;
  job.before_layer = before_layer;
  job.disturbed = fetch_ != nullptr && front_ < matched_;
  job.stop = request_.stop;
  job.block_seconds = &block_seconds_;
  const TimePoint start = kv_.clock_.Now();
  const Status status = kv_.prefiller_.Run(job);
  if (before_layer == nullptr && sequence_.length() > begin) NotePrefill(begin, start);
  return status;
}

void PromptRun::NotePrefill(int64_t begin, TimePoint start) {
  const int64_t block_tokens = kv_.block_tokens_;
  report_.timeline.push_back(
      {TimelineSpan::Kind::kCompute, TimelineSpan::kAllLayers,
       static_cast<uint32_t>(begin / block_tokens),
       static_cast<uint32_t>((sequence_.length() + block_tokens - 1) / block_tokens),
       Seconds(start - start_), Seconds(kv_.clock_.Now() - start_)});
}

void PromptRun::BeginChunks() {
  state_ = State::kChunk;
  report_.status = OkStatus();
  chunks_begin_ = sequence_.length();
  chunks_start_ = kv_.clock_.Now();
}

Step PromptRun::NextChunk(int64_t max_rows) {
  AdoptBlocks();
  const int64_t begin = sequence_.length();
  if (begin == total_) {
    EndChunks(OkStatus());
    return {Step::Kind::kWorked};
  }
  if (request_.stop && request_.stop()) {
    EndChunks(Status(StatusCode::kCancelled, "prefill stopped"));
    return {Step::Kind::kWorked};
  }
  const int64_t most = request_.background ? kv_.block_tokens_ : kv_.prefiller_.chunk_tokens();
  int64_t count = Unshared(std::min({most, total_ - begin, max_rows}));
  // A chunk ends at a block boundary or at the prompt's end.
  if (count < total_ - begin) count = count / kv_.block_tokens_ * kv_.block_tokens_;
  if (count <= 0) return {Step::Kind::kWaiting};
  chunk_tokens_ = count;
  Claim();
  Step step{Step::Kind::kChunk};
  step.chunk.sequence = &sequence_;
  step.chunk.tokens =
      request_.tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  step.chunk.phase = Phase::kPrefill;
  if (begin + count == total_) step.chunk.logits = request_.logits;
  if (selecting_) {
    step.chunk.observe = [this](const ChunkQueries& queries) { kv_.selections_->Observe(queries); };
  }
  return step;
}

void PromptRun::AdoptBlocks() {
  auto block = static_cast<size_t>(sequence_.length() / kv_.block_tokens_);
  const size_t end = std::min(names_.size(), most_adopted_);
  for (; block < end; ++block) {
    const std::byte* const own = sequence_.pages()[block];
    if (!sequence_.Adopt(static_cast<int64_t>(block), names_[block])) return;
    sequence_.SetLength(static_cast<int64_t>(block + 1) * kv_.block_tokens_);
    if (sequence_.pages()[block] == own) continue;  // Computed before loans were found broken.
    adopted_[block] = true;
    ++report_.shared_blocks;
    selecting_ = false;  // Nobody has seen the queries of these tokens.
  }
}

int64_t PromptRun::Unshared(int64_t count) const {
  const int64_t begin = sequence_.length() / kv_.block_tokens_;
  for (int64_t block = begin; (block - begin) * kv_.block_tokens_ < count; ++block) {
    const auto b = static_cast<size_t>(block);
    if (b >= std::min(names_.size(), most_adopted_)) break;
    if (kv_.claims_.contains(names_[b]) || sequence_.Published({&names_[b], 1}) > 0) {
      return (block - begin) * kv_.block_tokens_;
    }
  }
  return count;
}

void PromptRun::Claim() {
  if (names_.empty()) return;
  const auto begin = static_cast<size_t>(sequence_.length() / kv_.block_tokens_);
  claimed_ =
      std::span(names_).subspan(begin, static_cast<size_t>(chunk_tokens_ / kv_.block_tokens_));
  kv_.claims_.insert(claimed_.begin(), claimed_.end());
}

void PromptRun::Unclaim() {
  for (const BlockKey& name : claimed_) kv_.claims_.erase(name);
  claimed_ = {};
}

void PromptRun::Publish(int64_t begin, int64_t end) {
  // Blocks that were computed over memory that the node has taken back are computed again.
  if (names_.empty() || sequence_.FirstBrokenLoan() != sequence_.page_count()) return;
  for (int64_t b = begin; b < end; ++b) {
    if (!sequence_.lent(b)) sequence_.Publish(b, names_[static_cast<size_t>(b)]);
  }
}

void PromptRun::Computed(const Status& status, const Pass& pass) {
  Unclaim();
  if (!status.ok()) return EndChunks(status);
  const int64_t begin = sequence_.length() - chunk_tokens_;
  kv_.prefiller_.Measure(begin, chunk_tokens_, pass.seconds, pass.disturbed || request_.background,
                         &block_seconds_);
  Publish(begin / kv_.block_tokens_, sequence_.length() / kv_.block_tokens_);
  PushNow(sequence_.length() / kv_.block_tokens_);
  if (sequence_.length() == total_) EndChunks(OkStatus());
}

void PromptRun::EndChunks(const Status& status) {
  if (sequence_.length() > chunks_begin_) NotePrefill(chunks_begin_, chunks_start_);
  report_.status = status;
  if (status.ok() && check_loans_) {
    const Status loans = kv_.CheckLoans(request_.tokens, sequence_);
    if (loans.code() == StatusCode::kAborted) {
      sequence_.SetLength(*check_loans_);
      turned_lost_ = request_.turned_blocks > 0;
      return BeginChunks();
    }
    report_.status = loans;
  }
  Finish();
}

void PromptRun::Finish() {
  state_ = State::kFinished;
  int64_t there = std::max<int64_t>(held_, report_.fetched_blocks * kv_.block_tokens_);
  there += report_.shared_blocks * kv_.block_tokens_;
  report_.computed_tokens = static_cast<uint32_t>(std::max<int64_t>(0, sequence_.length() - there));
  there -= report_.shared_blocks * kv_.block_tokens_;
  // The node has the blocks that were computed by choice.
  there += report_.chosen_blocks * kv_.block_tokens_;
  // Without all turned blocks, what was computed stands on other bytes than its keys say.
  bool push = use_cache_ && !turned_lost_ && report_.fetched_blocks >= request_.turned_blocks;
  if (use_cache_ && kv_.session_->codec().lossy()) {
    if (report_.fetched_blocks == 0) {
      // All of it was computed over exact KV, also what the node has in another lineage.
      there = std::min<int64_t>(there, exact_ * kv_.block_tokens_);
    } else if (report_.chosen_blocks == 0 && as_pushed_) {
      keys_ = kv_.session_->KeysOverDecoded(request_.tokens,
                                            std::span(path_).first(report_.fetched_blocks));
    } else {
      // No key says where decoded KV met computed KV, or from which rung a block was decoded.
      push = false;
    }
  }
  if (push) kv_.Push(*this, static_cast<uint32_t>(std::max(pushed_, there / kv_.block_tokens_)));
  promise_.reset();
  if (kv_.watched_ == this) {
    if (selecting_ && report_.status.ok()) {
      kv_.selections_->Push(request_.tokens, request_.sequence, block_seconds_, request_.trace);
    } else {
      kv_.selections_->Drop();
    }
    kv_.watched_ = nullptr;
  }
  pause_.reset();
}

}  // namespace cairn::worker
