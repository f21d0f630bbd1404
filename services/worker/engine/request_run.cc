#include "services/worker/engine/request_run.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/config/config.h"
#include "common/log/log.h"
#include "services/worker/engine/parked_prompt.h"
#include "services/worker/engine/prompt_run.h"

namespace cairn::worker {

int64_t RequestParts::TokensToBegin(const Job& job) const {
  const int64_t needed = job.TokensNeeded();
  const bool all = answer_step == 0 || !job.request().score_tokens.empty() ||
                   needed > pool.total_pages() * pool.layout().block_tokens;
  return all ? needed : std::min(needed, std::ssize(job.prompt().tokens) + answer_step);
}

RequestRun::RequestRun(const RequestParts& parts, std::shared_ptr<Job> job, uint64_t id)
    : parts_(parts),
      job_(std::move(job)),
      id_(id),
      start_(parts.clock.Now()),
      sequence_(std::make_shared<KvSequence>(parts.pool.NewSequence())),
      logits_(static_cast<size_t>(parts.transformer.vocab())),
      outcome_(Status(StatusCode::kInternal, "the request has not finished")),
      answer_(job_->request(), parts.model.tokenizer()) {
  summary_.queue_seconds = Seconds(start_ - job_->queued_at());
  summary_.prompt_tokens = static_cast<uint32_t>(job_->prompt().tokens.size());
  summary_.dropped_tokens = static_cast<uint32_t>(job_->prompt().dropped);
}

Step RequestRun::Next(int64_t max_rows, bool alone) {
  const bool begun = way_ != nullptr && way_->begun();
  if ((state_ == State::kReserve || state_ == State::kPrompt) && !begun && stopped()) {
    under_way_ = false;
    EndPrompt(Status(StatusCode::kCancelled, "stopped before the match"));
    return {Step::Kind::kWorked};
  }
  if (state_ == State::kReserve) return Reserve(alone);
  if (under_way_) return NextOfWay(max_rows, alone);
  switch (state_) {
    case State::kDecode:
    case State::kScore:
      if (stopped() && state_ == State::kScore) return Score();  // Which needs no rows to end.
      if (max_rows < (state_ == State::kDecode ? 1 : sequence_->layout().block_tokens)) {
        return {Step::Kind::kWaiting};
      }
      if (std::exchange(pass_.repeat, false)) return pass_.step;
      return state_ == State::kDecode ? Decode(alone) : Score();
    default:
      break;
  }
  return {Step::Kind::kFinished};
}

Scheduler::Candidate RequestRun::candidate() const {
  Scheduler::Candidate candidate;
  candidate.id = id_;
  candidate.decoding = state_ == State::kDecode;
  candidate.ending = stopped();
  candidate.can_park = state_ != State::kScore && parts_.staged == nullptr &&
                       (way_ == nullptr || !way_->stays()) && reader_ == nullptr;
  candidate.starved = starved_;
  candidate.position = sequence_->length();
  candidate.claim = job_->claim();
  const int64_t all = std::ssize(job_->prompt().tokens);
  // Nothing is known before the match; a score is computed like a prompt.
  if (candidate.position > 0) candidate.claim.prefill_tokens = all - candidate.position;
  // As when it was put into the queue: routers would see a queue here that is another worker's.
  if (way_ != nullptr && way_->awaits()) {
    candidate.claim.prefill_tokens =
        std::min<int64_t>(candidate.claim.prefill_tokens, sequence_->layout().block_tokens);
  }
  if (state_ == State::kScore) {
    candidate.claim.prefill_tokens =
        std::ssize(job_->request().score_tokens) - static_cast<int64_t>(scores_.done);
  }
  if (candidate.decoding) candidate.claim.prefill_tokens = 0;
  return candidate;
}

TimePoint RequestRun::WakeAt() const {
  const TimePoint deadline = job_->request().deadline.value_or(TimePoint::max());
  return under_way_ ? std::min(deadline, way_->WakeAt()) : deadline;
}

std::span<const model::TokenId> RequestRun::PromptTokens() const {
  const std::span<const model::TokenId> tokens = job_->prompt().tokens;
  if (!job_->request().prefill_only) return tokens;
  const auto block_tokens = static_cast<size_t>(parts_.pool.layout().block_tokens);
  return tokens.first((tokens.size() - 1) / block_tokens * block_tokens);
}

PromptRequest RequestRun::Wanted() {
  const GenerateRequest& request = job_->request();
  PromptRequest wanted;
  wanted.tokens = PromptTokens();
  wanted.sequence = sequence_;
  wanted.logits = scoring() || request.prefill_only ? nullptr : logits_.data();
  wanted.hand_over = request.prefill_only;
  wanted.announced = [job = job_] { job->PutAnnounced(); };
  // A request that was parked begins again with what the node has by then.
  wanted.await = resumed_ || !wanted.use_cache ? Duration(0) : request.await_prefill;
  wanted.use_cache = !request.no_cache;
  // Tokens that were computed the first time must not come back in a lossy form.
  if (resumed_ && summary_.fetched_tokens == 0 && parts_.prompt_kv.lossy()) {
    wanted.use_cache = false;
  }
  wanted.prefix_end = request.prefix_end;
  wanted.next = request.next;
  wanted.trace = request.trace;
  wanted.stop = [this] { return stopped(); };
  wanted.stop_at = request.deadline.value_or(TimePoint::max());
  wanted.company = parts_.company;
  return wanted;
}

Step RequestRun::Reserve(bool alone) {
  const auto take = [this](std::unique_ptr<PromptWay> way) -> Step {
    way_ = std::move(way);
    under_way_ = true;
    state_ = State::kPrompt;
    return {Step::Kind::kWorked};
  };
  const auto fail = [this](const Status& status) -> Step {
    EndPrompt(status);
    return {Step::Kind::kWorked};
  };
  if (parts_.staged != nullptr) return take(NewStaged());
  const Result<bool> spills = MustSpill();
  if (!spills.ok()) return fail(spills.status());
  if (*spills) return take(NewSpilled());
  const Status room = parts_.reserve(*sequence_, TokensToBegin());
  if (room.ok()) return take(way_ != nullptr ? std::move(way_) : NewRun());
  const KvPool& pool = parts_.pool;
  const bool fits = job_->TokensNeeded() <= pool.total_pages() * pool.layout().block_tokens;
  // Others will give pages back.
  if (room.code() == StatusCode::kResourceExhausted && fits && !alone) {
    return {Step::Kind::kWaiting};
  }
  return fail(room);
}

PromptTask RequestRun::Task() {
  PromptTask task;
  task.request = Wanted();
  task.capacity = job_->TokensNeeded();
  task.whole = job_->prompt().whole;
  task.dropped = job_->prompt().dropped;
  task.usual = [this](PromptRequest request) {
    return std::make_unique<PromptRun>(parts_.prompt_kv.services(), std::move(request));
  };
  return task;
}

std::unique_ptr<PromptWay> RequestRun::NewStaged() { return parts_.staged->New(Task()); }

std::unique_ptr<PromptWay> RequestRun::NewSpilled() {
  return std::make_unique<SpilledPrompt>(*parts_.spill, parts_.transformer, parts_.clock,
                                         parts_.reserve, Wanted(),
                                         job_->TokensNeeded() - std::ssize(job_->prompt().tokens));
}

std::unique_ptr<PromptWay> RequestRun::NewRun() {
  const bool turns = job_->prompt().dropped > 0 && !job_->request().no_cache;
  if (turns && parts_.turned != nullptr) return parts_.turned->New(Task());
  return std::make_unique<PromptRun>(parts_.prompt_kv.services(), Wanted());
}

Result<bool> RequestRun::MustSpill() const {
  using config::FormatBytesUp;
  const KvLayout& kv = parts_.pool.layout();
  const int64_t most = parts_.pool.total_pages() * kv.block_tokens;
  const int64_t needed = job_->TokensNeeded();
  if (needed <= most) return false;
  const GenerateRequest& request = job_->request();
  const int64_t least =
      SpilledPrompt::LeastTokens(kv.block_tokens, needed - std::ssize(job_->prompt().tokens));
  std::string why = parts_.spill == nullptr ? parts_.no_spill
                    : request.no_cache      ? "the request uses no cache"
                    : request.prefill_only  ? "the request hands its prompt over"
                    : least > most
                        ? "a chunk and the answer alone need " + FormatBytesUp(kv.bytes_for(least))
                        : "";
  if (why.empty()) return true;
  return Errorf(StatusCode::kResourceExhausted,
                "kv_pool: got {}, expected at least {} for the request's {} tokens; they cannot be "
                "spilt to a cache node: {}",
                config::FormatBytes(parts_.pool_bytes), FormatBytesUp(kv.bytes_for(needed)), needed,
                why);
}

Step RequestRun::NextOfWay(int64_t max_rows, bool alone) {
  const Step step = way_->Next(max_rows, alone);
  if (!way_->finished()) return step;
  under_way_ = false;
  const PromptReport report = way_->TakeReport();
  turned_blocks_ = report.turned_blocks;
  if (state_ == State::kPrompt) {
    Note(report);
    EndPrompt(report.status);
  } else {
    EndReturn(report);
  }
  return {Step::Kind::kWorked};
}

void RequestRun::EndReturn(const PromptReport& report) {
  if (!report.status.ok()) {
    resumed_ = true;
    EndPromptAgain(report.status);
  } else if (report.lost_answer) {
    // Generated tokens go through the decode kernels again.
    decoded_ = 0;
    if (state_ == State::kScore) {
      Finish(Status(StatusCode::kUnavailable,
                    "the cache node lost the prompt's KV while it was scored; try again"));
    }
  } else {
    pass_.repeat = true;
  }
}

size_t RequestRun::parked_bytes() const {
  return ParkedKv::Bytes(sequence_->layout(), sequence_->length());
}

void RequestRun::Park(bool keep) {
  CAIRN_CHECK(candidate().can_park && state_ != State::kFinished);
  if (kept_bytes() > 0) {  // It was parked before, and its copy is still to be restored.
    sequence_->Clear();
    state_ = State::kReserve;
    return;
  }
  std::optional<ParkedKv> copy;
  if (keep && state_ == State::kDecode && !pass_.repeat) copy = ParkedKv::Of(*sequence_);
  resumed_ = resumed_ || state_ == State::kDecode;
  gave_pages_ = true;
  starved_ = false;
  way_.reset();
  pass_.repeat = false;
  // Pushes that wait may still hold it.
  sequence_->DropLoans();
  sequence_ = std::make_shared<KvSequence>(parts_.pool.NewSequence());
  if (copy) way_ = std::make_unique<ParkedPrompt>(*std::move(copy), *sequence_);
  decoded_ = 0;
  state_ = State::kReserve;
}

void RequestRun::Note(const PromptReport& report) {
  if (resumed_) return;
  const KvLayout& kv = parts_.pool.layout();
  const auto block_tokens = static_cast<uint32_t>(kv.block_tokens);
  summary_.fetched_tokens = report.fetched_blocks * block_tokens;
  summary_.shared_tokens = report.shared_blocks * block_tokens;
  summary_.computed_tokens = report.status.ok()
                                 ? static_cast<uint32_t>(PromptTokens().size()) -
                                       summary_.fetched_tokens - summary_.shared_tokens
                                 : report.computed_tokens;
  // All but the first block.
  if (report.fetched_blocks >= report.turned_blocks && report.turned_blocks > 0) {
    summary_.turned_tokens = (report.turned_blocks - 1) * block_tokens;
  }
  summary_.miss_reason = report.miss_reason;
  summary_.fetched = report.fetched;
  summary_.match_seconds = report.match_seconds;
  summary_.fetch_seconds = report.fetch_seconds;
  summary_.fetch_path = report.path;
  summary_.chosen_tokens = report.chosen_blocks * block_tokens;
  summary_.selected_tokens = report.selected_tokens;
  const double all = static_cast<double>(report.selected_tokens) * kv.layers * kv.kv_heads;
  summary_.kept_share = all > 0 ? static_cast<double>(report.kept_rows) / all : 0;
  if (job_->request().want_timeline) summary_.timeline = report.timeline;
}

void RequestRun::EndPrompt(const Status& status) {
  if (resumed_) return EndPromptAgain(status);
  if (way_ != nullptr && !way_->stays()) way_.reset();
  if (status.code() == StatusCode::kCancelled) {
    summary_.finish_reason = "cancelled";
    return Finish(OkStatus());
  }
  if (!status.ok()) return Finish(status);
  if (job_->request().prefill_only) {
    summary_.finish_reason = "prefill";
    return Finish(OkStatus());
  }
  if (const Status reading = BeginReading(); !reading.ok()) return Finish(reading);
  if (scoring()) {
    state_ = State::kScore;
    return;
  }
  state_ = State::kDecode;
  summary_.finish_reason = "length";
  if (job_->request().want_logits_digest) {
    summary_.prompt_logits_sha256 =
        Sha256().Update(std::as_bytes(std::span<const float>(logits_))).Finish();
  }
}

Status RequestRun::BeginReading() {
  if (parts_.reading == nullptr) return OkStatus();
  // The way that the request cannot do without has the rows; recipes that select are not read so.
  if (way_ != nullptr) return ReadSpilled();
  const KvLayout& kv = sequence_->layout();
  const int64_t length = sequence_->length();
  const int64_t rows = length / kv.block_tokens * kv.block_tokens;
  if (rows == 0) {
    summary_.reading.off =
        fmt::format("the prompt has no whole block of {} tokens", kv.block_tokens);
    return OkStatus();
  }
  const int64_t needed = job_->TokensNeeded();
  const auto open = [&] {
    return parts_.reading->Open(*sequence_, ContextOf(rows), parts_.transformer.thread_pool());
  };
  auto opened = open();
  if (opened.status().code() == StatusCode::kAborted) {
    const Status mended = parts_.prompt_kv.CheckLoans(job_->prompt().tokens, *sequence_);
    if (!mended.ok() && mended.code() != StatusCode::kAborted) return mended;
    opened = open();
  }
  if (!opened.ok()) return opened.status();
  // The tokens behind the last whole block go on in pages.
  std::vector<std::byte> tail;
  if (length > rows) {
    const std::byte* const page = sequence_->LayerSlice(rows / kv.block_tokens, 0).data();
    tail.assign(page, page + kv.page_bytes());
    sequence_->Truncate(rows);
  }
  // Pushes may still hold the prompt's pages; they read only whole blocks of it.
  auto own = std::make_shared<KvSequence>(parts_.pool.NewSequence());
  own->StartAt(rows);
  sequence_ = own;
  CAIRN_RETURN_IF_ERROR(parts_.reserve(*own, needed));
  if (!tail.empty()) {
    std::memcpy(own->LayerSlice(0, 0).data(), tail.data(), tail.size());
    own->SetLength(length);
  }
  Use(*std::move(opened));
  return OkStatus();
}

ContextToRead RequestRun::ContextOf(int64_t rows) const {
  ContextToRead context;
  context.rows = rows;
  context.own_tokens = job_->TokensNeeded() - rows;
  context.trace = job_->request().trace;
  // Turned blocks, and those over them, have other bytes than the tokens say.
  if (job_->request().no_cache || turned_blocks_ > 0) return context;
  context.last_block = parts_.prompt_kv.ContextKey(
      std::span(job_->prompt().tokens).first(static_cast<size_t>(rows)));
  return context;
}

Status RequestRun::ReadSpilled() {
  EarlierKv* const earlier = way_->earlier();
  if (earlier == nullptr) {
    summary_.reading.off = "nothing of the prompt is at the cache node";
    return OkStatus();
  }
  const auto rows = static_cast<size_t>(earlier->tokens());
  auto opened = parts_.reading->OpenSpilled(
      *earlier, *parts_.spill,
      parts_.spill->session.Keys(std::span(job_->prompt().tokens).first(rows)),
      ContextOf(earlier->tokens()), parts_.transformer.thread_pool());
  if (opened.ok()) {
    Use(*std::move(opened));
    return OkStatus();
  }
  // Decode steps can still read all that was spilt, in windows.
  summary_.reading.off = Message(opened.status());
  log::Warn("context_not_read_by_rows",
            {{"error", ToString(opened.status())}, {"trace", job_->request().trace}});
  return OkStatus();
}

void RequestRun::Use(OpenedContext context) {
  reader_ = std::move(context.reader);
  summary_.reading.off.clear();
  summary_.reading.policy = std::move(context.policy);
  summary_.reading.far_tokens = static_cast<uint32_t>(context.rows);
  summary_.reading.near_bytes = context.near_bytes;
}

void RequestRun::EndPromptAgain(const Status& status) {
  if (way_ != nullptr && !way_->stays()) way_.reset();
  if (status.ok()) {
    // A copy of parked KV has generated tokens, too.
    decoded_ = static_cast<size_t>(sequence_->length() - std::ssize(job_->prompt().tokens));
    if (decoded_ == 0) {
      if (const Status reading = BeginReading(); !reading.ok()) return Finish(reading);
    }
    state_ = State::kDecode;
    return;
  }
  if (status.code() != StatusCode::kCancelled) return Finish(status);
  summary_.finish_reason = "cancelled";
  summary_.text += answer_.Finish();
  Finish(OkStatus());
}

Step RequestRun::Decode(bool alone) {
  const auto finish = [&](const char* reason) -> Step {
    summary_.text += answer_.Finish();
    summary_.finish_reason = answer_.stopped() ? "stop" : reason;
    Finish(OkStatus());
    return {Step::Kind::kWorked};
  };
  // The KV of these tokens was lost. The logits are not those of the last one yet.
  if (decoded_ < summary_.tokens.size()) {
    return stopped() ? finish("cancelled") : DecodeToken(alone);
  }
  Result<Answer::Next> next = answer_.Take(logits_);
  if (!next.ok()) {
    Finish(next.status());
    return {Step::Kind::kWorked};
  }
  if (summary_.ttft_seconds == 0) summary_.ttft_seconds = Seconds(parts_.clock.Now() - start_);
  if (next->ended) return finish("stop");
  summary_.tokens.push_back(next->token);
  summary_.text += next->text;
  job_->PutToken(next->token, std::move(next->text));
  if (answer_.stopped()) return finish("stop");
  if (summary_.tokens.size() >= job_->prompt().max_tokens) return finish("length");
  if (stopped()) return finish("cancelled");
  return DecodeToken(alone);
}

Status RequestRun::MakeRoomForToken(bool alone) {
  const int64_t length = sequence_->length();
  if (length < sequence_->capacity()) return OkStatus();
  const int64_t most = std::min(job_->TokensNeeded(), length + parts_.answer_step);
  if (alone) return parts_.reserve(*sequence_, most);
  const int64_t block_tokens = sequence_->layout().block_tokens;
  const int64_t spare = parts_.spare_pages();
  if (spare <= 0) return Status(StatusCode::kResourceExhausted, "no page is left");
  return sequence_->Reserve(std::min(most, length + spare * block_tokens));
}

Step RequestRun::DecodeToken(bool alone) {
  const Status room = MakeRoomForToken(alone);
  starved_ = !room.ok();
  if (starved_ && !alone) return {Step::Kind::kWaiting};
  if (starved_) {
    Finish(room);
    return {Step::Kind::kWorked};
  }
  // No token is added before the pass is over.
  Step& step = pass_.step;
  step = Chunk(std::span(summary_.tokens).subspan(decoded_++, 1));
  step.chunk.phase = Phase::kDecode;
  step.chunk.logits = logits_.data();
  return step;
}

Step RequestRun::Score() {
  const std::span<const model::TokenId> tokens = job_->request().score_tokens;
  if (scores_.done >= tokens.size() || stopped()) {
    summary_.finish_reason = job_->cancelled() ? "cancelled" : "length";
    Finish(OkStatus());
    return {Step::Kind::kWorked};
  }
  // Others need not wait for a reader that is slow.
  if (!job_->HasRoomForScores()) return {Step::Kind::kWaiting};
  // Whole blocks, since a prefill chunk begins at one; small ones, since a row is 4 bytes x
  // vocabulary.
  const auto block = static_cast<size_t>(sequence_->layout().block_tokens);
  // Where the context is read by rows, one token at a time is decoded, as an answer is.
  const size_t count = reader_ != nullptr ? 1 : std::min(block, tokens.size() - scores_.done);
  scores_.rows.assign(count * logits_.size(), 0.0f);
  Step& step = pass_.step;
  step = Chunk(tokens.subspan(scores_.done, count));
  step.chunk.logits = scores_.rows.data();
  step.chunk.logits_of_every_token = reader_ == nullptr;
  if (reader_ != nullptr) step.chunk.phase = Phase::kDecode;
  return step;
}

Step RequestRun::Chunk(std::span<const model::TokenId> tokens) {
  Step step{Step::Kind::kChunk};
  step.chunk.sequence = sequence_.get();
  step.chunk.tokens = tokens;
  step.chunk.reader = reader_.get();
  if (way_ != nullptr && reader_ == nullptr) step.chunk.earlier = way_->earlier();
  pass_.length = sequence_->length();
  return step;
}

void RequestRun::Computed(const Status& status, const Pass& pass) {
  if (under_way_) return way_->Computed(status, pass);
  if (!status.ok() && reader_ == nullptr && way_ != nullptr && way_->GoBack(status)) {
    under_way_ = true;
    return;
  }
  if (!status.ok()) return Finish(status);
  const Status loans = parts_.prompt_kv.CheckLoans(job_->prompt().tokens, *sequence_);
  if (loans.code() == StatusCode::kAborted) {
    sequence_->SetLength(pass_.length);
    pass_.repeat = true;
    return;
  }
  if (!loans.ok()) return Finish(loans);
  if (state_ != State::kScore) return;
  const size_t rows = pass_.step.chunk.tokens.size();
  job_->PutScores(scores_.done, rows, std::move(scores_.rows));
  scores_.done += rows;
}

void RequestRun::Finish(Status status) {
  state_ = State::kFinished;
  summary_.total_seconds = Seconds(parts_.clock.Now() - start_);
  if (reader_ != nullptr) summary_.reading.counters = reader_->counters();
  if (const auto read = way_ != nullptr ? way_->read() : std::nullopt) {
    summary_.fetched = read->bytes;
    summary_.fetch_path = read->path;
  }
  if (summary_.prompt_logits_sha256) summary_.answer_logits_sha256 = answer_.LogitsDigest();
  if (status.ok()) {
    outcome_ = std::move(summary_);
  } else {
    outcome_ = std::move(status);
  }
}

}  // namespace cairn::worker
