#include "services/worker/engine/prompt_fetch.h"

#include <algorithm>
#include <utility>

namespace cairn::worker {

PromptFetch::PromptFetch(PromptWork& work, PrefixSession::Match match, uint32_t held, Way way)
    : work_(work),
      block_tokens_(work.services.block_tokens()),
      held_(held),
      matched_(match.blocks),
      way_(way),
      front_(held) {
  PrefixSession::FetchWanted wanted;
  wanted.prompt_tokens = work.tokens();
  wanted.chunk_tokens = work.services.prefiller.chunk_tokens();
  wanted.prefill = work.services.prefiller.model();
  wanted.overlap = way != Way::kPolled;
  wanted.choose = way == Way::kBothEnds;
  // Pieces of what another worker computes are copied.
  wanted.lend = work.request.await <= Duration(0);
  wanted.held = held;
  wanted.trace = work.request.trace;
  fetch_ = work.services.session->Fetch(std::move(match), work.sequence, wanted);
}

PromptFetch::Progress PromptFetch::Next(bool alone) {
  if (way_ != Way::kPolled) return alone ? Overlap() : PollFromNowOn();
  const bool polls = work_.request.company != nullptr;
  if (polls && !fetch_->PollDone()) {
    if (!work_.stopped()) return Progress::kWaiting;
    fetch_->Cancel();
  }
  return Progress::kEnded;
}

PromptFetch::Progress PromptFetch::Overlap() {
  bool gave_way = false;
  const GiveWay give_way = [&] {
    gave_way = work_.request.company && work_.request.company();
    return gave_way;
  };
  Status status;
  do {
    status = way_ == Way::kBothEnds ? ComputeFront(give_way) : OkStatus();
    if (status.ok()) status = ComputeRest(give_way);
  } while (status.code() == StatusCode::kAborted && !gave_way && fetch_->TurnedBack());
  if (gave_way && status.code() == StatusCode::kAborted) return PollFromNowOn();
  if (status.code() == StatusCode::kCancelled) return Progress::kStopped;
  computed_ = status.ok();
  return Progress::kEnded;
}

PromptFetch::Progress PromptFetch::PollFromNowOn() {
  way_ = Way::kPolled;
  fetch_->FetchTheRest();
  return Progress::kGaveWay;
}

PromptFetch::End PromptFetch::Finish() {
  // Blocks that can still come are waited for, unless they are not wanted or nobody may wait.
  const bool wait = way_ == Way::kPolled ? work_.request.company == nullptr : !computed_;
  const PrefixFetch::Outcome outcome = fetch_->Finish(wait, work_.Stop());
  fetch_.reset();
  PromptReport& report = work_.report;
  report.fetched += outcome.bytes;
  report.path = outcome.path;
  report.fetch_seconds += outcome.seconds;
  report.fetched_blocks = held_ + outcome.fetched_blocks;
  report.chosen_blocks = outcome.blocks - report.fetched_blocks;
  const double offset = Seconds(outcome.start - work_.start);
  for (size_t layer = 0; layer < outcome.layers.size(); ++layer) {
    const FetchProgress::LayerTimes& times = outcome.layers[layer];
    if (times.last == 0) continue;
    report.timeline.push_back({TimelineSpan::Kind::kFetch, static_cast<int32_t>(layer), front_,
                               matched_, offset + times.first, offset + times.last});
  }
  if (outcome.blocks < matched_) {
    report.miss_reason = outcome.reason;
  } else if (outcome.fetched_blocks == 0 && first_target_.value_or(0) < matched_) {
    report.miss_reason = MissReason::kDeadline;  // Computing was faster, against expectation.
  }
  return {.blocks = outcome.blocks,
          .front = front_,
          .computed = computed_,
          .decoded = work_.services.lossy() && outcome.fetched_blocks > 0,
          .as_pushed = outcome.as_pushed};
}

Status PromptFetch::ComputeFront(const GiveWay& give_way) {
  const Prefiller& prefiller = work_.services.prefiller;
  const Clock& clock = work_.services.clock;
  while (true) {
    const FetchProgress::Step step = fetch_->Decide(front_);
    front_ = step.front;
    if (!first_target_) first_target_ = step.target;
    if (step.target <= front_) return OkStatus();
    if (give_way()) return Status(StatusCode::kAborted, "other requests have come");
    const int64_t begin = front_ * block_tokens_;
    // When everything is computed, a chunk may reach into the rest of the prompt.
    const int64_t most = step.target == matched_ ? work_.tokens() : step.target * block_tokens_;
    const int64_t end = std::min(begin + prefiller.chunk_tokens(), most);
    const auto front_end = static_cast<uint32_t>(std::min<int64_t>(matched_, end / block_tokens_));
    if (!fetch_->Claim(front_, front_end)) return OkStatus();
    work_.sequence.SetLength(begin);
    fetch_->SetComputing(true);
    const TimePoint start = clock.Now();
    const Status status = Prefill(end, nullptr);
    fetch_->Computed(Seconds(clock.Now() - start), prefiller.model().Seconds(begin, end - begin));
    fetch_->SetComputing(false);
    CAIRN_RETURN_IF_ERROR(status);
    front_ = front_end;
    if (end > matched_ * block_tokens_) return OkStatus();
  }
}

Status PromptFetch::ComputeRest(const GiveWay& give_way) {
  const Clock& clock = work_.services.clock;
  const int64_t begin = matched_ * block_tokens_;
  if (front_ == matched_) {
    fetch_->Cancel();  // Nothing of it is wanted any more.
    work_.sequence.SetLength(std::max(begin, work_.sequence.length()));
    return Prefill(work_.tokens(), nullptr);
  }
  if (fetch_->Broken()) return Errorf(StatusCode::kAborted, "fetch: over");
  work_.sequence.SetLength(begin);
  const auto end_block =
      static_cast<uint32_t>((work_.tokens() + block_tokens_ - 1) / block_tokens_);
  Timeline& timeline = work_.report.timeline;
  TimePoint computing = clock.Now();
  const auto span = [&](int layer) {
    timeline.push_back({TimelineSpan::Kind::kCompute, layer, matched_, end_block,
                        Seconds(computing - work_.start), Seconds(clock.Now() - work_.start)});
  };
  FetchInterrupt interrupt = work_.Stop();
  interrupt.wanted = [&] { return work_.stopped() || give_way(); };
  int last = 0;
  const size_t spans = timeline.size();
  const Status status = Prefill(work_.tokens(), [&](int layer) -> Status {
    if (layer > 0) span(layer - 1);
    last = layer;
    const auto stopped = [] { return Status(StatusCode::kCancelled, "prefill stopped"); };
    if (work_.stopped()) return stopped();
    const Status there = fetch_->WaitLayer(layer, front_, interrupt);
    computing = clock.Now();
    return !there.ok() && work_.stopped() ? stopped() : there;
  });
  if (status.ok()) {
    span(last);
  } else {
    timeline.resize(spans);  // Thrown away.
  }
  return status;
}

Status PromptFetch::Prefill(int64_t end, const std::function<Status(int)>& before_layer) {
  KvSequence& sequence = work_.sequence;
  const int64_t begin = sequence.length();
  if (begin == end) return OkStatus();
  Prefiller::Job job;
  job.tokens = work_.request.tokens.first(static_cast<size_t>(end));
  job.sequence = &sequence;
  job.logits = end == work_.tokens() ? work_.request.logits : nullptr;
  job.chunk_tokens = work_.request.background ? block_tokens_ : 0;
  job.before_layer = before_layer;
  job.disturbed = front_ < matched_;
  job.stop = work_.request.stop;
  job.block_seconds = &work_.block_seconds;
  const TimePoint start = work_.services.clock.Now();
  const Status status = work_.services.prefiller.Run(job);
  if (before_layer == nullptr && sequence.length() > begin) work_.NoteComputed(begin, start);
  return status;
}

}  // namespace cairn::worker
