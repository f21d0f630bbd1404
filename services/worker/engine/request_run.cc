#include "services/worker/engine/request_run.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/config/config.h"
#include "common/log/log.h"
#include "services/worker/reading/background_rows.h"
#include "services/worker/reading/node_rows.h"

namespace cairn::worker {

RequestRun::RequestRun(const RequestParts& parts, std::shared_ptr<Job> job, uint64_t id)
    : parts_(parts),
      job_(std::move(job)),
      id_(id),
      start_(parts.clock.Now()),
      sequence_(std::make_shared<KvSequence>(parts.pool.NewSequence())),
      logits_(static_cast<size_t>(parts.transformer.vocab())),
      outcome_(Status(StatusCode::kInternal, "the request has not finished")),
      sampler_(job_->request().sampling),
      decoder_(parts.model.tokenizer()),
      stop_text_(job_->request().stop) {
  summary_.queue_seconds = Seconds(start_ - job_->queued_at());
  summary_.prompt_tokens = static_cast<uint32_t>(job_->prompt().tokens.size());
  summary_.dropped_tokens = static_cast<uint32_t>(job_->prompt().dropped);
}

Step RequestRun::Next(int64_t max_rows, bool alone) {
  const bool begun =
      (prompt_ && prompt_->state() != PromptRun::State::kMatch) || spilled_.has_value();
  if ((state_ == State::kReserve || state_ == State::kPrompt) && !begun && stopped()) {
    PromptKv::Report report;
    report.status = Status(StatusCode::kCancelled, "stopped before the match");
    EndPrompt(report);
    return {Step::Kind::kWorked};
  }
  if (spilled_ && (state_ == State::kPrompt || returning_)) return NextSpilled(max_rows);
  switch (state_) {
    case State::kReserve:
      return Reserve(alone);
    case State::kPrompt: {
      Step step = prompt_->Next(max_rows, alone);
      if (prompt_->state() != PromptRun::State::kFinished) return step;
      EndPrompt(prompt_->report());
      return {Step::Kind::kWorked};
    }
    case State::kDecode:
    case State::kScore:
      if (stopped() && state_ == State::kScore) return Score();  // Which needs no rows to end.
      if (max_rows < (state_ == State::kDecode ? 1 : sequence_->layout().block_tokens)) {
        return {Step::Kind::kWaiting};
      }
      if (std::exchange(repeat_, false)) return pass_;
      return state_ == State::kDecode ? Decode() : Score();
    case State::kFinished:
      break;
  }
  return {Step::Kind::kFinished};
}

Scheduler::Candidate RequestRun::candidate() const {
  Scheduler::Candidate candidate;
  candidate.id = id_;
  candidate.decoding = state_ == State::kDecode;
  candidate.ending = stopped();
  candidate.can_park = state_ != State::kScore && parts_.selected_prompt == nullptr && !spilled_ &&
                       reader_ == nullptr;
  candidate.position = sequence_->length();
  candidate.claim = job_->claim();
  const int64_t all = std::ssize(job_->prompt().tokens);
  // Nothing is known before the match; a score is computed like a prompt.
  if (candidate.position > 0) candidate.claim.prefill_tokens = all - candidate.position;
  // As when it was put into the queue: routers would see a queue here that is another worker's.
  if (prompt_ && prompt_->awaits()) {
    candidate.claim.prefill_tokens =
        std::min<int64_t>(candidate.claim.prefill_tokens, sequence_->layout().block_tokens);
  }
  if (state_ == State::kScore) {
    candidate.claim.prefill_tokens =
        std::ssize(job_->request().score_tokens) - static_cast<int64_t>(scored_);
  }
  if (candidate.decoding) candidate.claim.prefill_tokens = 0;
  return candidate;
}

bool RequestRun::WaitBriefly() {
  if (state_ == State::kScore) job_->HasRoomForScores(std::chrono::milliseconds(10));
  if (spilled_ && (state_ == State::kPrompt || returning_)) {  // For the cache node.
    job_->WaitCancelled(std::chrono::milliseconds(10));
    return true;
  }
  return state_ == State::kScore || (state_ == State::kPrompt && prompt_ && prompt_->WaitBriefly());
}

std::span<const TokenId> RequestRun::PromptTokens() const {
  const std::span<const TokenId> tokens = job_->prompt().tokens;
  if (!job_->request().prefill_only) return tokens;
  const auto block_tokens = static_cast<size_t>(parts_.pool.layout().block_tokens);
  return tokens.first((tokens.size() - 1) / block_tokens * block_tokens);
}

PromptKv::Request RequestRun::Wanted() {
  const GenerateRequest& request = job_->request();
  PromptKv::Request wanted;
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
  wanted.keys = turned_.keys;
  wanted.turned_blocks = turned_.blocks;
  wanted.prefix_end = request.prefix_end;
  wanted.next = request.next;
  wanted.trace = request.trace;
  wanted.stop = [this] { return stopped(); };
  wanted.company = parts_.company;
  return wanted;
}

Step RequestRun::Reserve(bool alone) {
  if (parts_.selected_prompt != nullptr) {
    ComputeSelected();
    return {Step::Kind::kWorked};
  }
  const Result<bool> spills = MustSpill();
  if (!spills.ok() || *spills) {
    if (!spills.ok()) {
      PromptKv::Report report;
      report.status = spills.status();
      EndPrompt(report);
      return {Step::Kind::kWorked};
    }
    spilled_.emplace(*parts_.spill, parts_.transformer, parts_.clock, parts_.reserve, Wanted(),
                     job_->TokensNeeded() - std::ssize(job_->prompt().tokens));
    state_ = State::kPrompt;
    return {Step::Kind::kWorked};
  }
  const Status room = parts_.reserve(*sequence_, job_->TokensNeeded());
  if (room.ok() && parked_) {
    parked_->Restore(*sequence_);
    parked_.reset();
    decoded_ = summary_.tokens.size();
    state_ = State::kDecode;
    return {Step::Kind::kWorked};
  }
  if (room.ok()) {
    FindTurned();
    prompt_.emplace(parts_.prompt_kv, Wanted());
    state_ = State::kPrompt;
    return {Step::Kind::kWorked};
  }
  const KvPool& pool = parts_.pool;
  const bool fits = job_->TokensNeeded() <= pool.total_pages() * pool.layout().block_tokens;
  // Others will give pages back.
  if (room.code() == StatusCode::kResourceExhausted && fits && !alone) {
    return {Step::Kind::kWaiting};
  }
  PromptKv::Report report;
  report.status = room;
  EndPrompt(report);
  return {Step::Kind::kWorked};
}

void RequestRun::FindTurned() {
  const PreparedPrompt& prompt = job_->prompt();
  if (prompt.dropped == 0 || parts_.turn == nullptr || job_->request().no_cache) return;
  turned_ = TurnBack(*parts_.turn, prompt.whole, prompt.dropped, job_->request().trace);
}

RequestRun::~RequestRun() {
  if (spilled_ && parts_.spilled) parts_.spilled(spilled_->GetStats());
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

Step RequestRun::NextSpilled(int64_t max_rows) {
  const Step step = spilled_->Next(max_rows);
  if (spilled_->state() != SpilledPrompt::State::kFinished) return step;
  if (!std::exchange(returning_, false)) {
    EndPrompt(spilled_->report());
    return {Step::Kind::kWorked};
  }
  const Status& status = spilled_->report().status;
  if (!status.ok()) {
    resumed_ = true;
    EndPromptAgain(status);
  } else if (spilled_->lost_answer()) {
    // Generated tokens go through the decode kernels again.
    decoded_ = 0;
    if (state_ == State::kScore) {
      Finish(Status(StatusCode::kUnavailable,
                    "the cache node lost the prompt's KV while it was scored; try again"));
    }
  } else {
    repeat_ = true;
  }
  return {Step::Kind::kWorked};
}

bool RequestRun::ReturnToSpilled(const Status& status) {
  if (!spilled_ || !spilled_->ReturnTo(status)) return false;
  returning_ = true;
  return true;
}

size_t RequestRun::parked_bytes() const {
  return ParkedKv::Bytes(sequence_->layout(), sequence_->length());
}

void RequestRun::Park(bool keep) {
  CAIRN_CHECK(candidate().can_park && state_ != State::kFinished);
  if (keep && state_ == State::kDecode && !repeat_) parked_ = ParkedKv::Of(*sequence_);
  resumed_ = resumed_ || state_ == State::kDecode;
  prompt_.reset();
  repeat_ = false;
  // Pushes that wait may still hold it.
  sequence_->DropLoans();
  sequence_ = std::make_shared<KvSequence>(parts_.pool.NewSequence());
  decoded_ = 0;
  state_ = State::kReserve;
}

void RequestRun::ComputeSelected() {
  SelectedPrompt::Request request;
  request.prompt = Wanted();
  request.capacity = job_->TokensNeeded();
  request.make_room = parts_.make_room;
  const SelectedPrompt::Report report = parts_.selected_prompt->Compute(request);
  summary_.selected_tokens = report.selected_tokens;
  const KvLayout& kv = parts_.pool.layout();
  const double all = static_cast<double>(report.selected_tokens) * kv.layers * kv.kv_heads;
  summary_.kept_share = all > 0 ? static_cast<double>(report.kept_rows) / all : 0;
  EndPrompt(report.prompt);
}

void RequestRun::EndPrompt(const PromptKv::Report& report) {
  const auto block_tokens = static_cast<uint32_t>(parts_.pool.layout().block_tokens);
  if (resumed_) return EndPromptAgain(report.status);
  summary_.fetched_tokens = report.fetched_blocks * block_tokens;
  summary_.shared_tokens = report.shared_blocks * block_tokens;
  summary_.computed_tokens = report.status.ok()
                                 ? static_cast<uint32_t>(PromptTokens().size()) -
                                       summary_.fetched_tokens - summary_.shared_tokens
                                 : report.computed_tokens;
  // All but the first block.
  if (report.fetched_blocks >= turned_.blocks && turned_.blocks > 0) {
    summary_.turned_tokens = (turned_.blocks - 1) * block_tokens;
  }
  summary_.miss_reason = report.miss_reason;
  summary_.fetched = report.fetched;
  summary_.match_seconds = report.match_seconds;
  summary_.fetch_seconds = report.fetch_seconds;
  summary_.fetch_path = report.path;
  summary_.chosen_tokens = report.chosen_blocks * block_tokens;
  if (job_->request().want_timeline) summary_.timeline = report.timeline;
  const Status status = report.status;
  prompt_.reset();
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
  if (spilled_) return ReadSpilled();
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
    return OpenContext(*parts_.reading, *sequence_, rows, needed - rows,
                       parts_.transformer.thread_pool(), NameOf(rows));
  };
  auto reader = open();
  if (reader.status().code() == StatusCode::kAborted) {
    const Status mended = parts_.prompt_kv.CheckLoans(job_->prompt().tokens, *sequence_);
    if (!mended.ok() && mended.code() != StatusCode::kAborted) return mended;
    reader = open();
  }
  if (!reader.ok()) return reader.status();
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
  Use(*std::move(reader));
  return OkStatus();
}

ContextName RequestRun::NameOf(int64_t rows) const {
  ContextName name;
  name.trace = job_->request().trace;
  // Turned blocks, and those over them, have other bytes than the tokens say.
  if (parts_.reading->indexes == nullptr || job_->request().no_cache || turned_.blocks > 0) {
    return name;
  }
  name.last_block = parts_.prompt_kv.ContextKey(
      std::span(job_->prompt().tokens).first(static_cast<size_t>(rows)));
  return name;
}

Status RequestRun::ReadSpilled() {
  EarlierKv* const earlier = spilled_->earlier();
  if (earlier == nullptr) {
    summary_.reading.off = "nothing of the prompt is at the cache node";
    return OkStatus();
  }
  const KvLayout& kv = sequence_->layout();
  const SpillServices& node = *parts_.spill;
  const int64_t rows = earlier->tokens();
  const std::span<const TokenId> tokens = job_->prompt().tokens;
  const std::string& trace = job_->request().trace;
  auto held =
      NodeRows::Hold(node.client, parts_.clock, node.session.spec(), kv, node.session.fingerprint(),
                     node.session.Keys(tokens.first(static_cast<size_t>(rows))), {}, trace);
  Status status = held.status();
  if (held.ok()) {
    WindowLayers layers(*earlier);
    auto source =
        std::make_unique<BackgroundRows>(*std::move(held), node.executor, parts_.clock,
                                         BackgroundRows::Options{.row_bytes = kv.row_bytes()});
    auto reader =
        OpenFarContext(*parts_.reading, kv, layers, std::move(source), job_->TokensNeeded() - rows,
                       parts_.transformer.thread_pool(), NameOf(rows));
    status = reader.status();
    if (reader.ok()) Use(*std::move(reader));
  }
  // Decode steps can still read all that was spilt, in windows.
  if (!status.ok()) {
    summary_.reading.off = Message(status);
    log::Warn("context_not_read_by_rows", {{"error", ToString(status)}, {"trace", trace}});
  }
  return OkStatus();
}

void RequestRun::Use(std::unique_ptr<ContextReader> reader) {
  reader_ = std::move(reader);
  summary_.reading.off.clear();
  summary_.reading.policy = reader_->policy().ToString();
  summary_.reading.far_tokens = static_cast<uint32_t>(reader_->rows());
  summary_.reading.near_bytes = reader_->near().total() - reader_->near().own_bytes;
}

void RequestRun::EndPromptAgain(const Status& status) {
  prompt_.reset();
  if (status.ok()) {
    if (const Status reading = BeginReading(); !reading.ok()) return Finish(reading);
    state_ = State::kDecode;
    return;
  }
  if (status.code() != StatusCode::kCancelled) return Finish(status);
  summary_.finish_reason = "cancelled";
  summary_.text += stop_text_.Add(decoder_.Finish()) + stop_text_.Finish();
  Finish(OkStatus());
}

Step RequestRun::Decode() {
  const auto finish = [&](const char* reason) -> Step {
    if (!stop_text_.stopped()) summary_.text += stop_text_.Add(decoder_.Finish());
    summary_.text += stop_text_.Finish();
    summary_.finish_reason = stop_text_.stopped() ? "stop" : reason;
    Finish(OkStatus());
    return {Step::Kind::kWorked};
  };
  // The KV of these tokens was lost. The logits are not those of the last one yet.
  if (decoded_ < summary_.tokens.size()) return stopped() ? finish("cancelled") : DecodeToken();
  if (job_->request().want_logits_digest) {
    answer_digest_.Update(std::as_bytes(std::span<const float>(logits_)));
  }
  const Result<TokenId> token = sampler_.Sample(logits_);
  if (!token.ok()) {
    Finish(token.status());
    return {Step::Kind::kWorked};
  }
  token_ = *token;
  if (summary_.ttft_seconds == 0) summary_.ttft_seconds = Seconds(parts_.clock.Now() - start_);
  if (!job_->request().ignore_eos && parts_.model.tokenizer().IsEndOfGeneration(token_)) {
    return finish("stop");
  }
  summary_.tokens.push_back(token_);
  std::string text = stop_text_.Add(decoder_.Add(token_));
  summary_.text += text;
  job_->PutToken(token_, std::move(text));
  if (stop_text_.stopped()) return finish("stop");
  if (summary_.tokens.size() >= job_->prompt().max_tokens) return finish("length");
  if (stopped()) return finish("cancelled");
  return DecodeToken();
}

Step RequestRun::DecodeToken() {
  token_ = summary_.tokens[decoded_++];
  pass_ = Chunk({&token_, 1});
  pass_.chunk.phase = Phase::kDecode;
  pass_.chunk.logits = logits_.data();
  return pass_;
}

Step RequestRun::Score() {
  const std::span<const TokenId> tokens = job_->request().score_tokens;
  if (scored_ >= tokens.size() || stopped()) {
    summary_.finish_reason = job_->cancelled() ? "cancelled" : "length";
    Finish(OkStatus());
    return {Step::Kind::kWorked};
  }
  // Others need not wait for a reader that is slow.
  if (!job_->HasRoomForScores()) return {Step::Kind::kWaiting};
  // Whole blocks, since a prefill chunk begins at one; small ones, since a row is 4 bytes x
  // vocabulary.
  const auto step = static_cast<size_t>(sequence_->layout().block_tokens);
  // Where the context is read by rows, one token at a time is decoded, as an answer is.
  const size_t count = reader_ != nullptr ? 1 : std::min(step, tokens.size() - scored_);
  scores_.assign(count * logits_.size(), 0.0f);
  pass_ = Chunk(tokens.subspan(scored_, count));
  pass_.chunk.logits = scores_.data();
  pass_.chunk.logits_of_every_token = reader_ == nullptr;
  if (reader_ != nullptr) pass_.chunk.phase = Phase::kDecode;
  return pass_;
}

Step RequestRun::Chunk(std::span<const TokenId> tokens) {
  Step step{Step::Kind::kChunk};
  step.chunk.sequence = sequence_.get();
  step.chunk.tokens = tokens;
  step.chunk.reader = reader_.get();
  if (spilled_ && reader_ == nullptr) step.chunk.earlier = spilled_->earlier();
  pass_length_ = sequence_->length();
  return step;
}

void RequestRun::Computed(const Status& status, const Pass& pass) {
  if (spilled_ && (state_ == State::kPrompt || returning_)) return spilled_->Computed(status);
  if (state_ == State::kPrompt) return prompt_->Computed(status, pass);
  if (!status.ok() && reader_ == nullptr && ReturnToSpilled(status)) return;
  if (!status.ok()) return Finish(status);
  const Status loans = parts_.prompt_kv.CheckLoans(job_->prompt().tokens, *sequence_);
  if (loans.code() == StatusCode::kAborted) {
    sequence_->SetLength(pass_length_);
    repeat_ = true;
    return;
  }
  if (!loans.ok()) return Finish(loans);
  if (state_ != State::kScore) return;
  const size_t rows = pass_.chunk.tokens.size();
  job_->PutScores(scored_, rows, std::move(scores_));
  scored_ += rows;
}

void RequestRun::Finish(Status status) {
  state_ = State::kFinished;
  summary_.total_seconds = Seconds(parts_.clock.Now() - start_);
  if (reader_ != nullptr) summary_.reading.counters = reader_->counters();
  if (spilled_) {
    summary_.fetched = spilled_->GetStats().read.bytes;
    summary_.fetch_path = parts_.spill->client.GetStats().path;
  }
  if (summary_.prompt_logits_sha256) summary_.answer_logits_sha256 = answer_digest_.Finish();
  if (status.ok()) {
    outcome_ = std::move(summary_);
  } else {
    outcome_ = std::move(status);
  }
}

}  // namespace cairn::worker
