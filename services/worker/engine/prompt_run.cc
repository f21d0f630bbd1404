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

std::vector<BlockKey> KeysOf(const PromptWork& work) {
  if (!work.uses_cache()) return {};
  if (!work.request.keys.empty()) return work.request.keys;
  return work.services.session->Keys(work.request.tokens);
}

// Full blocks that need not be computed: the last token always is when its logits are wanted.
size_t MostTaken(const PromptWork& work) {
  const int64_t tokens = work.request.logits != nullptr ? work.tokens() - 1 : work.tokens();
  return static_cast<size_t>(tokens / work.services.block_tokens());
}

// Under which blocks are shared with other prompts: their keys of exact lineage.
std::vector<BlockKey> NamesOf(const PromptWork& work, const std::vector<BlockKey>& keys) {
  const PromptRequest& request = work.request;
  if (!request.use_cache || request.background || !request.keys.empty()) return {};
  if (work.uses_cache()) return keys;
  // All of the pool is KV of one model, so without a namespace any root will do.
  return BlockKeyChain(Digest()).Keys(request.tokens,
                                      static_cast<uint32_t>(work.services.block_tokens()));
}

}  // namespace

PromptRun::PromptRun(PromptServices& services, PromptRequest request)
    : work_(services, std::move(request)),
      block_tokens_(services.block_tokens()),
      held_blocks_(work_.sequence.length() / block_tokens_),
      keys_(KeysOf(work_)),
      wanted_(std::span(keys_).first(std::min(keys_.size(), MostTaken(work_)))),
      shared_(services.claims, work_.sequence, NamesOf(work_, keys_), MostTaken(work_)),
      push_(work_, shared_) {
  pause_.emplace(work_.request.background ? nullptr : services.push);
  if (work_.uses_cache() && services.stages != nullptr && held_blocks_ == 0 &&
      work_.request.keys.empty()) {
    watch_ = services.stages->Begin(work_.request.tokens, work_.request.prefix_end,
                                    std::ssize(wanted_) * block_tokens_, work_.sequence);
  }
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
      return NextFetching(alone);
    case State::kChunk:
      return NextChunk(max_rows);
    case State::kFinished:
      break;
  }
  return {Step::Kind::kFinished};
}

TimePoint PromptRun::WakeAt() const {
  return fetch_ != nullptr ? fetch_->WakeAt() : TimePoint::max();
}

void PromptRun::Match(bool alone) {
  if (wanted_.empty()) {
    push_.Announce(wanted_);
    return BeginChunks();
  }
  PrefixSession& session = *work_.services.session;
  const bool lossy = work_.services.lossy();
  const auto here = static_cast<size_t>(shared_.on() ? work_.sequence.Published(wanted_) : 0);
  // The node's decoded blocks go first, so only it can say what a lossy recipe shares.
  if (here == wanted_.size() && !lossy) {
    push_.Announce(wanted_);
    return BeginChunks();
  }
  PrefixSession::Match match = session.Lookup(wanted_, work_.services.prefiller.tokens_per_second(),
                                              work_.request.trace, work_.request.next);
  push_.Announce(wanted_);
  PromptReport& report = work_.report;
  report.match_seconds += match.seconds;
  report.miss_reason = match.reason;
  report.timeline.push_back({TimelineSpan::Kind::kMatch, TimelineSpan::kAllLayers, 0, match.blocks,
                             0, Seconds(work_.services.clock.Now() - work_.start)});
  exact_ = match.blocks;
  if (lossy && match.blocks > 0) MatchFurther(&match);
  matched_ = match.blocks;
  if (held_blocks_ > 0) {
    // Idle work on pages that a push may be reading: they are not fetched over.
    return matched_ < wanted_.size() ? BeginChunks() : Finish();
  }
  if (MayAwait(matched_, match.reason) && (matched_ <= arrived_ || lossy)) {
    return StartAwait(lossy ? 0 : std::max(matched_, arrived_));
  }
  if (matched_ <= arrived_ || (matched_ <= here && !lossy)) {
    session.CountMissed(match.reason, wanted_.size() - here);
    return BeginChunks();
  }
  StartFetch(std::move(match), alone);
}

void PromptRun::MatchFurther(PrefixSession::Match* match) {
  PrefixSession& session = *work_.services.session;
  path_.assign(keys_.begin(), keys_.begin() + match->blocks);
  for (int i = 0; i < kMostFurtherMatches && match->blocks < wanted_.size(); ++i) {
    const std::vector<BlockKey> keys = session.KeysOverDecoded(work_.request.tokens, path_);
    PrefixSession::Match further =
        session.Lookup(std::span(keys).first(wanted_.size()),
                       work_.services.prefiller.tokens_per_second(), work_.request.trace);
    if (further.blocks <= match->blocks) return;
    *match = std::move(further);
    path_.assign(keys.begin(), keys.begin() + match->blocks);
  }
}

PromptFetch::Way PromptRun::ChooseWay(bool alone) const {
  const PrefixSession::Options& options = work_.services.session->options();
  const PromptRequest& request = work_.request;
  // Pieces of what another worker computes are only fetched; the last one overlaps, too.
  const bool pieces = request.await > Duration(0);
  if (!alone || !options.overlap || matched_ * block_tokens_ >= work_.tokens() ||
      request.hand_over || (pieces && matched_ < wanted_.size())) {
    return PromptFetch::Way::kPolled;
  }
  // Where parts of a lossy prefix are computed instead of fetched, what follows has bytes that
  // depend on where they meet, and is not pushed. So nothing is chosen while there is more to push
  // than the last token's block.
  const bool loses = work_.services.lossy() && matched_ < wanted_.size();
  if (!options.choose || request.background || pieces || !request.keys.empty() || loses) {
    return PromptFetch::Way::kOverlapped;
  }
  return PromptFetch::Way::kBothEnds;
}

void PromptRun::StartFetch(PrefixSession::Match match, bool alone) {
  watch_.reset();  // Nobody sees the queries of fetched tokens.
  fetch_ = std::make_unique<PromptFetch>(work_, std::move(match), arrived_, ChooseWay(alone));
  state_ = State::kFetching;
}

Step PromptRun::NextFetching(bool alone) {
  switch (fetch_->Next(alone)) {
    case PromptFetch::Progress::kWaiting:
      return {Step::Kind::kWaiting};
    case PromptFetch::Progress::kGaveWay:
      break;
    case PromptFetch::Progress::kStopped:
      fetch_.reset();
      work_.sequence.SetLength(0);
      work_.report.status = Status(StatusCode::kCancelled, "prefill stopped");
      Finish();
      break;
    case PromptFetch::Progress::kEnded:
      SettleFetch();
      break;
  }
  return {Step::Kind::kWorked};
}

void PromptRun::SettleFetch() {
  const PromptFetch::End end = fetch_->Finish();
  fetch_.reset();
  PromptReport& report = work_.report;
  KvSequence& sequence = work_.sequence;
  if (end.decoded) {
    shared_.Stop();
    lineage_ = end.as_pushed && report.chosen_blocks == 0 ? Lineage::kDecoded : Lineage::kMixed;
  }
  if (end.blocks < wanted_.size()) {
    work_.services.session->CountMissed(report.miss_reason, wanted_.size() - end.blocks);
  }
  uint32_t good = end.blocks;
  if (end.computed && good == matched_) {
    const int64_t broken = sequence.FirstBrokenLoan();
    if (broken == sequence.page_count()) {
      shared_.Publish(0, end.front);
      shared_.Publish(matched_, work_.tokens() / block_tokens_);
      return Finish();
    }
    // The node took its memory back while it was read.
    good = static_cast<uint32_t>(broken);
    report.miss_reason = MissReason::kUnavailable;
    report.fetched_blocks = std::min(report.fetched_blocks, good);
    report.chosen_blocks = good - report.fetched_blocks;
  }
  // Nothing was computed yet, or it stands on KV that did not come.
  for (int64_t page = good; page < sequence.page_count(); ++page) sequence.TakeBack(page);
  sequence.SetLength(good * block_tokens_);
  if (work_.request.hand_over) push_.Skip(good);
  if (good == matched_ && MayAwait(good, MissReason::kIncomplete)) return StartAwait(good);
  // Blocks that are computed now may read lent pages, too.
  chunks_.sure = good * block_tokens_;
  BeginChunks();
}

bool PromptRun::MayAwait(uint32_t there, MissReason reason) const {
  return work_.uses_cache() && there < wanted_.size() && reason == MissReason::kIncomplete &&
         work_.services.clock.Now() < await_until();
}

void PromptRun::StartAwait(uint32_t there) {
  arrived_ = there;
  pause_.reset();  // This may take long.
  const auto all = static_cast<uint32_t>(wanted_.size());
  // A lossy prefix is fetched whole: see ChooseWay.
  const uint32_t next = work_.services.lossy() ? all : std::min(all, there + kAwaitedPiece);
  awaited_ =
      work_.services.session->Await(wanted_, there, next, await_until(), work_.request.trace);
  state_ = State::kAwaiting;
}

Step PromptRun::NextAwaiting(bool alone) {
  const bool stopped = work_.stopped();
  if (!stopped && !awaited_->PollDone()) return {Step::Kind::kWaiting};
  const bool more = !stopped && awaited_->blocks() > arrived_;
  work_.report.miss_reason = awaited_->reason();
  awaited_.reset();
  if (more) {
    Match(alone);
  } else {
    work_.services.session->CountMissed(work_.report.miss_reason, wanted_.size() - arrived_);
    BeginChunks();
  }
  return {Step::Kind::kWorked};
}

void PromptRun::BeginChunks() {
  state_ = State::kChunk;
  chunks_.begin = work_.sequence.length();
  chunks_.start = work_.services.clock.Now();
}

Step PromptRun::NextChunk(int64_t max_rows) {
  const uint32_t adopted = shared_.Adopt();
  work_.report.shared_blocks += adopted;
  if (adopted > 0) watch_.reset();  // Nobody has seen the queries of these tokens.
  const int64_t begin = work_.sequence.length();
  const int64_t left = work_.tokens() - begin;
  if (left == 0) {
    EndChunks(OkStatus());
    return {Step::Kind::kWorked};
  }
  if (work_.stopped()) {
    EndChunks(Status(StatusCode::kCancelled, "prefill stopped"));
    return {Step::Kind::kWorked};
  }
  const int64_t most =
      work_.request.background ? block_tokens_ : work_.services.prefiller.chunk_tokens();
  int64_t count = shared_.Unshared(std::min({most, left, max_rows}));
  // A chunk ends at a block boundary or at the prompt's end.
  if (count < left) count = count / block_tokens_ * block_tokens_;
  if (count <= 0) return {Step::Kind::kWaiting};
  chunks_.under_way = count;
  shared_.Claim(count);
  Step step{Step::Kind::kChunk};
  step.chunk.sequence = &work_.sequence;
  step.chunk.tokens =
      work_.request.tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  step.chunk.phase = Phase::kPrefill;
  if (count == left) step.chunk.logits = work_.request.logits;
  if (watch_ != nullptr) {
    step.chunk.observe = [this](const ChunkQueries& queries) { watch_->Observe(queries); };
  }
  return step;
}

void PromptRun::Computed(const Status& status, const Pass& pass) {
  shared_.Unclaim();
  if (!status.ok()) return EndChunks(status);
  const int64_t end = work_.sequence.length();
  const int64_t begin = end - chunks_.under_way;
  work_.services.prefiller.Measure(begin, chunks_.under_way, pass.seconds,
                                   pass.disturbed || work_.request.background,
                                   &work_.block_seconds);
  shared_.Publish(begin / block_tokens_, end / block_tokens_);
  push_.PushNow(keys_, end / block_tokens_);
  if (end == work_.tokens()) EndChunks(OkStatus());
}

void PromptRun::EndChunks(const Status& status) {
  if (work_.sequence.length() > chunks_.begin) work_.NoteComputed(chunks_.begin, chunks_.start);
  work_.report.status = status;
  if (status.ok() && chunks_.sure) {
    const Status loans = work_.services.prefiller.CheckLoans(work_.request.tokens, work_.sequence);
    if (loans.code() == StatusCode::kAborted) {
      work_.sequence.SetLength(*chunks_.sure);
      if (work_.request.turned_blocks > 0) lineage_ = Lineage::kTurnedLost;
      return BeginChunks();
    }
    work_.report.status = loans;
  }
  Finish();
}

void PromptRun::Finish() {
  state_ = State::kFinished;
  work_.report.computed_tokens = CountComputed();
  if (work_.report.fetched_blocks < work_.request.turned_blocks) lineage_ = Lineage::kTurnedLost;
  push_.Finish(KeysToPush(), BlocksAtNode(), lineage_);
  EndWatch();
  pause_.reset();
}

uint32_t PromptRun::CountComputed() const {
  const PromptReport& report = work_.report;
  const int64_t others =
      std::max<int64_t>(held_blocks_, report.fetched_blocks) + report.shared_blocks;
  return static_cast<uint32_t>(
      std::max<int64_t>(0, work_.sequence.length() - others * block_tokens_));
}

std::vector<BlockKey> PromptRun::KeysToPush() const {
  switch (lineage_) {
    case Lineage::kExact:
      return keys_;
    case Lineage::kDecoded:
      return work_.services.session->KeysOverDecoded(
          work_.request.tokens, std::span(path_).first(work_.report.fetched_blocks));
    case Lineage::kMixed:
    case Lineage::kTurnedLost:
      break;
  }
  return {};
}

int64_t PromptRun::BlocksAtNode() const {
  const PromptReport& report = work_.report;
  // The node has the blocks that were computed by choice.
  const int64_t blocks =
      std::max<int64_t>(held_blocks_, report.fetched_blocks) + report.chosen_blocks;
  // All of a lossy prompt was computed over exact KV, also what the node has in another lineage.
  const bool all_computed = work_.services.lossy() && report.fetched_blocks == 0;
  return all_computed ? std::min<int64_t>(blocks, exact_) : blocks;
}

void PromptRun::EndWatch() {
  if (watch_ != nullptr && work_.report.status.ok()) {
    watch_->Push(work_.request.tokens, work_.request.sequence, work_.block_seconds,
                 work_.request.trace);
  }
  watch_.reset();
}

}  // namespace cairn::worker
