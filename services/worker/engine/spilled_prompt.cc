#include "services/worker/engine/spilled_prompt.h"

#include <algorithm>
#include <utility>

#include "common/config/config.h"
#include "common/log/log.h"

namespace cairn::worker {
namespace {

// Passes that may fail one after the other. Each has waited for a fetch's deadline, at most.
constexpr int kMostFailures = 8;
// Between two questions to a node that did not do its part.
constexpr std::chrono::milliseconds kAskAgain{10};

}  // namespace

SpilledPrompt::SpilledPrompt(const SpillServices& services, const Transformer& transformer,
                             const Clock& clock,
                             const std::function<Status(KvSequence&, int64_t)>& reserve,
                             PromptRequest request, int64_t answer_tokens)
    : services_(services),
      transformer_(transformer),
      clock_(clock),
      reserve_(reserve),
      request_(std::move(request)),
      sequence_(*request_.sequence),
      total_(std::ssize(request_.tokens)),
      answer_tokens_(answer_tokens),
      block_tokens_(transformer.kv_layout().block_tokens),
      keys_(services.session.Keys(request_.tokens)),
      kv_({.client = services.client, .clock = clock, .executor = services.executor},
          services.session.fingerprint(), transformer.kv_layout(), services.options,
          request_.trace) {
  CAIRN_CHECK(sequence_.length() == 0);
  stats_.prompts = 1;
}

SpilledPrompt::~SpilledPrompt() {
  stats_.read = kv_.GetStats();
  if (services_.count) services_.count(stats_);
}

std::optional<PromptWay::Read> SpilledPrompt::read() const {
  return Read{.bytes = kv_.GetStats().bytes, .path = services_.client.GetStats().path};
}

bool SpilledPrompt::IsMiss(const Status& status) {
  switch (status.code()) {
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
    case StatusCode::kNotFound:
    case StatusCode::kDataLoss:
    case StatusCode::kResourceExhausted:
      return true;
    default:
      return false;
  }
}

Step SpilledPrompt::Next(int64_t max_rows, bool /*alone*/) {
  if (state_ == State::kSpilling) return NextSpilling();
  if (asking_ != nullptr && !asking_->task->done()) return {Step::Kind::kWaiting};
  if (state_ != State::kFinished && request_.stop && request_.stop()) {
    End(Status(StatusCode::kCancelled, "prefill stopped"));
    return {Step::Kind::kWorked};
  }
  if (ask_again_ && clock_.Now() < *ask_again_) return {Step::Kind::kWaiting};
  ask_again_.reset();
  switch (state_) {
    case State::kMatch:
      return Match();
    case State::kChunk:
      return NextChunk(max_rows);
    case State::kReturn:
      return Return();
    case State::kSpilling:
    case State::kFinished:
      break;
  }
  return {Step::Kind::kFinished};
}

std::optional<SpilledPrompt::Held> SpilledPrompt::Hold(size_t blocks) {
  if (asking_ == nullptr) {
    asking_ = std::make_unique<Asking>();
    Held& held = asking_->held;
    asking_->task.emplace(services_.executor, clock_, services_.wakeup,
                          [this, &held, keys = std::span(keys_).first(blocks)] {
                            const TimePoint start = clock_.Now();
                            held.status = kv_.Hold(keys);
                            held.seconds = Seconds(clock_.Now() - start);
                          });
  }
  if (!asking_->task->done()) return std::nullopt;
  Held held = std::move(asking_->held);
  asking_.reset();
  return held;
}

Step SpilledPrompt::Match() {
  // The last token is always computed.
  const auto most = static_cast<size_t>((total_ - 1) / block_tokens_);
  const std::optional<Held> held = Hold(std::min(keys_.size(), most));
  if (!held) return {Step::Kind::kWaiting};
  const Status& status = held->status;
  report_.match_seconds = held->seconds;
  report_.miss_reason = status.ok()                                      ? kv_.miss_reason()
                        : status.code() == StatusCode::kDeadlineExceeded ? MissReason::kDeadline
                                                                         : MissReason::kUnavailable;
  if (kv_.tokens() > 0) sequence_.StartAt(kv_.tokens());
  report_.fetched_blocks = static_cast<uint32_t>(kv_.tokens() / block_tokens_);
  // Behind the last whole unit.
  report_.chosen_blocks = kv_.matched_blocks() - report_.fetched_blocks;
  state_ = State::kChunk;
  return {Step::Kind::kWorked};
}

Step SpilledPrompt::NextChunk(int64_t max_rows) {
  const int64_t begin = sequence_.length();
  if (begin == total_) return EndChunks();
  int64_t count = std::min({transformer_.max_rows(), max_rows, total_ - begin});
  if (count < total_ - begin) count = count / block_tokens_ * block_tokens_;
  if (count <= 0) return {Step::Kind::kWaiting};
  if (MustSpill(begin + count)) return BeginSpill();
  Status room = MakeRoom(begin + count);
  while (room.code() == StatusCode::kResourceExhausted && count > block_tokens_) {
    count = std::max(block_tokens_, count / 2 / block_tokens_ * block_tokens_);
    room = MakeRoom(begin + count);
  }
  if (!room.ok()) return WaitOrEnd(room);
  chunk_tokens_ = count;
  Step step{Step::Kind::kChunk};
  step.chunk.sequence = &sequence_;
  step.chunk.tokens =
      request_.tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
  step.chunk.phase = Phase::kPrefill;
  step.chunk.earlier = earlier();
  if (begin + count == total_) step.chunk.logits = request_.logits;
  return step;
}

Step SpilledPrompt::EndChunks() {
  if (services_.read_by_rows && RowsAtNode(total_) > sequence_.base() && !rows_asked_) {
    rows_asked_ = true;
    spills_rows_ = true;
    return BeginSpill();
  }
  // Blocks that the node does not take stay in pages, if there is room.
  if (MustSpill(total_ + answer_tokens_)) return BeginSpill();
  return WaitOrEnd(MakeRoom(total_ + answer_tokens_));
}

Step SpilledPrompt::WaitOrEnd(const Status& room) {
  if (room.code() == StatusCode::kUnavailable && Patient()) return {Step::Kind::kWaiting};
  End(room);
  return {Step::Kind::kWorked};
}

void SpilledPrompt::Computed(const Status& status, const Pass& /*pass*/) {
  if (status.ok()) {
    failures_ = 0;
    failing_since_.reset();
    return;
  }
  if (!GoBack(status)) End(status);
}

bool SpilledPrompt::GoBack(const Status& status) {
  if (kv_.tokens() == 0 || !IsMiss(status)) return false;
  ++stats_.repeated_passes;
  ++failures_;
  if (!failing_since_) failing_since_ = clock_.Now();
  log::Info("spilled_kv_missed", {{"error", ToString(status)}, {"trace", request_.trace}});
  report_.status = status;
  if (state_ == State::kFinished) report_.lost_answer = false;
  state_ = State::kReturn;
  return true;
}

bool SpilledPrompt::Patient() {
  const TimePoint now = clock_.Now();
  if (!failing_since_) failing_since_ = now;
  ask_again_ = now + kAskAgain;
  return now - *failing_since_ < services_.patience;
}

Step SpilledPrompt::Return() {
  const int64_t base = sequence_.base();
  const std::optional<Held> held = Hold(static_cast<size_t>(base / block_tokens_));
  if (!held) return {Step::Kind::kWaiting};
  if (!held->status.ok()) {
    if (IsMiss(held->status) && Patient()) return {Step::Kind::kWaiting};
    End(Errorf(StatusCode::kUnavailable,
               "{} tokens of the prompt's KV are at the cache node, which does not answer: {}",
               base, std::string(held->status.message())));
    return {Step::Kind::kWorked};
  }
  if (failures_ > kMostFailures) {
    End(Errorf(StatusCode::kUnavailable,
               "{} tokens of the prompt's KV are at the cache node, and do not come: {}", base,
               std::string(report_.status.message())));
    return {Step::Kind::kWorked};
  }
  if (kv_.tokens() < base) BackTo(kv_.tokens());
  report_.status = OkStatus();
  state_ = prompt_done_ && sequence_.length() >= total_ ? State::kFinished : State::kChunk;
  return {Step::Kind::kWorked};
}

void SpilledPrompt::BackTo(int64_t tokens) {
  stats_.lost_tokens += static_cast<uint64_t>(sequence_.base() - tokens);
  report_.lost_answer = true;
  rows_asked_ = false;
  // A push may be reading the pages.
  if (services_.background != nullptr) services_.background->DropPending();
  sequence_.Clear();
  sequence_.StartAt(tokens);
  const auto blocks = static_cast<uint32_t>(tokens / block_tokens_);
  if (blocks >= report_.fetched_blocks) return;
  report_.fetched_blocks = blocks;
  report_.chosen_blocks = 0;
  report_.miss_reason = kv_.miss_reason();
}

bool SpilledPrompt::MustSpill(int64_t end) {
  return sequence_.Reserve(end).code() == StatusCode::kResourceExhausted &&
         sequence_.length() - sequence_.base() >= EarlierKv::kUnitTokens;
}

Status SpilledPrompt::MakeRoom(int64_t end) {
  Status room = sequence_.Reserve(end);
  if (room.code() != StatusCode::kResourceExhausted) return room;
  room = reserve_(sequence_, end);  // Takes room that others can do without.
  if (room.code() == StatusCode::kResourceExhausted) {
    const uint64_t least =
        transformer_.kv_layout().bytes_for(LeastTokens(block_tokens_, answer_tokens_));
    return Errorf(
        StatusCode::kResourceExhausted,
        "kv_pool: no room for {} tokens beside the {} that were spilt to the cache node; "
        "expected at least {} for this request alone: a chunk and its answer of {} tokens",
        end - sequence_.base(), sequence_.base(), config::FormatBytesUp(least), answer_tokens_);
  }
  return room;
}

ComputedBlock SpilledPrompt::BlockOf(int64_t block) const {
  const auto b = static_cast<size_t>(block);
  ComputedBlock out;
  out.key = keys_[b];
  if (b > 0) out.parent = keys_[b - 1];
  out.first_position = b * static_cast<uint64_t>(block_tokens_);
  const int64_t page = block - sequence_.base() / block_tokens_;
  out.page = {std::as_const(sequence_).LayerSlice(page, 0).data(), sequence_.layout().page_bytes()};
  out.hold = request_.sequence;
  out.trace = request_.trace;
  return out;
}

int64_t SpilledPrompt::SpillEnd() const {
  return std::min<int64_t>(sequence_.length(), std::ssize(keys_) * block_tokens_) /
         EarlierKv::kUnitTokens * EarlierKv::kUnitTokens;
}

Status SpilledPrompt::CannotSpill(const std::string& why) const {
  return Errorf(StatusCode::kUnavailable,
                "kv_pool: no room for the prompt of {} tokens, and tokens [{}, {}) cannot be "
                "spilt to the cache node: {}",
                total_, sequence_.base(), SpillEnd(), why);
}

Step SpilledPrompt::BeginSpill() {
  const int64_t base = sequence_.base();
  const int64_t end = SpillEnd();
  if (end <= base) return WaitOrEnd(CannotSpill("they are not whole blocks of the prompt"));
  BlockSpill::Wanted wanted;
  wanted.fingerprint = services_.session.fingerprint();
  wanted.codec = &services_.session.codec();
  for (int64_t b = base / block_tokens_; b < end / block_tokens_; ++b) {
    wanted.blocks.push_back(BlockOf(b));
  }
  wanted.keys.assign(keys_.begin(), keys_.begin() + end / block_tokens_);
  wanted.held_tokens = base;
  wanted.all_tokens = end;
  wanted.flush_deadline = services_.patience;
  wanted.trace = request_.trace;
  spill_ = std::make_unique<BlockSpill>(BlockSpill::Dependencies{.client = services_.client,
                                                                 .clock = clock_,
                                                                 .executor = services_.executor,
                                                                 .push = services_.push,
                                                                 .turn = services_.turn,
                                                                 .wakeup = services_.wakeup},
                                        kv_, std::move(wanted));
  state_ = State::kSpilling;
  return {Step::Kind::kWorked};
}

Step SpilledPrompt::NextSpilling() {
  const bool stopped = request_.stop && request_.stop();
  if (stopped) spill_->Cancel();
  if (!spill_->done()) return {Step::Kind::kWaiting};
  const Status spilled = EndSpill(spill_->outcome());
  spill_.reset();
  state_ = State::kChunk;
  // Rows that the node did not take may have room in pages: EndChunks looks.
  const bool in_pages =
      std::exchange(spills_rows_, false) && sequence_.length() == total_ && !node_too_small_;
  if (spilled.ok() || in_pages || stopped) return {Step::Kind::kWorked};
  rows_asked_ = false;
  return WaitOrEnd(spilled);
}

Status SpilledPrompt::EndSpill(const BlockSpill::Outcome& outcome) {
  const int64_t base = sequence_.base();
  const int64_t end = SpillEnd();
  if (!outcome.held.ok()) return CannotSpill(std::string(outcome.held.message()));
  const int64_t left = kv_.tokens();
  Status failed;
  if (!outcome.taken) {
    failed = CannotSpill("it did not take them: " + std::string(outcome.refused.message()));
  } else if (!outcome.full) {
    failed = CannotSpill(fmt::format("it has the first {} only", left));
  }
  // The node has it, and its pages are given back.
  if (left > base) {
    stats_.spilled_tokens += static_cast<uint64_t>(left - base);
    sequence_.DropFront(left);
  }
  if (left == end) return OkStatus();
  // Blocks that were spilt before may be gone, too.
  if (left < base) BackTo(left);
  if (!failed.ok()) return failed;
  // It gave blocks of this prompt up for others of it.
  node_too_small_ = true;
  return Errorf(StatusCode::kResourceExhausted,
                "the cache node is too small: the KV of the prompt's {} tokens takes {} there, and "
                "of the first {} tokens it could only keep {}",
                total_, config::FormatBytesUp(transformer_.kv_layout().bytes_for(total_)), end,
                left);
}

void SpilledPrompt::PushRest() {
  if (services_.background == nullptr) return;
  std::vector<ComputedBlock> blocks;
  const int64_t end = std::min<int64_t>(total_ / block_tokens_, std::ssize(keys_));
  for (int64_t b = sequence_.base() / block_tokens_; b < end; ++b) blocks.push_back(BlockOf(b));
  services_.background->Enqueue(services_.session.fingerprint(), services_.session.codec(),
                                std::move(blocks));
}

void SpilledPrompt::End(const Status& status) {
  report_.status = status;
  if (status.ok() && !prompt_done_) {
    prompt_done_ = true;
    PushRest();
  }
  report_.computed_tokens = static_cast<uint32_t>(
      std::max<int64_t>(0, sequence_.length() - report_.fetched_blocks * block_tokens_));
  state_ = State::kFinished;
}

}  // namespace cairn::worker
