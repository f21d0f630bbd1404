#include "services/worker/methods/selections/selected_prompt.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "services/worker/engine/push_pause.h"
#include "services/worker/methods/selections/selection_publisher.h"

namespace cairn::worker {

struct SelectedPrompts::Run {
  const Request& request;
  KvSequence& sequence;
  std::span<const model::TokenId> tokens;
  TimePoint start;
  int64_t end = 0;  // The end of the segment; 0: nothing is selected.
  Report report = {};
  std::vector<BlockKey> chain = {};  // The keys of the tokens up to `end`; empty without the cache.
  SegmentSession::Path path = {};    // That the sequence begins with.
  selections::KeptRows kept = {};
  std::vector<double> block_seconds = {};  // See Prefiller::Measure.
};

SelectedPrompts::SelectedPrompts(Transformer& transformer, const model::Model& model, KvPool& pool,
                                 const Clock& clock, const selections::Selection& selection,
                                 PrefixSession* session, PushQueue* push,
                                 std::function<void()> make_room)
    : transformer_(transformer),
      pool_(pool),
      clock_(clock),
      selection_(selection),
      session_(session),
      push_(push),
      model_(model),
      prefiller_(transformer, clock),
      block_tokens_(transformer.kv_layout().block_tokens),
      make_room_(std::move(make_room)) {
  if (session_ != nullptr) segments_.emplace(*session_, pool_, clock_);
}

std::unique_ptr<PromptWay> SelectedPrompts::New(PromptTask task) {
  Request request;
  request.prompt = std::move(task.request);
  request.capacity = task.capacity;
  request.make_room = make_room_;
  return std::make_unique<SelectedPrompt>(*this, std::move(request));
}

SelectedPrompts::Report SelectedPrompts::Compute(const Request& request) {
  const PushPause pause(push_);
  Run run{request, *request.prompt.sequence, request.prompt.tokens, clock_.Now()};
  run.block_seconds.resize(
      static_cast<size_t>((std::ssize(run.tokens) + block_tokens_ - 1) / block_tokens_));
  Plan(run);
  PromptReport& report = run.report.prompt;
  if (run.report.shared && request.prompt.use_cache && session_ != nullptr) FindAndFetch(run);
  const int64_t fetched = run.sequence.length();
  report.fetched_blocks = static_cast<uint32_t>(fetched / block_tokens_);
  report.status = Reserve(run, std::max(request.capacity, run.end));
  if (report.status.ok() && run.sequence.length() < run.end) report.status = MakeSegment(run);
  const auto total = std::ssize(run.tokens);
  if (report.status.ok() && run.sequence.length() < total) {
    report.status = Prefill(run, total, nullptr);
  }
  // A prompt that was selected to its last token has fewer pages left than it may need.
  if (report.status.ok()) report.status = Reserve(run, request.capacity);
  report.computed_tokens =
      static_cast<uint32_t>(std::max<int64_t>(0, run.sequence.length() - fetched));
  report.selected_tokens = static_cast<uint32_t>(run.sequence.base());
  if (run.sequence.prefix() != nullptr) {
    report.kept_rows = static_cast<uint64_t>(run.sequence.prefix()->rows());
  }
  return std::move(run.report);
}

void SelectedPrompts::Plan(Run& run) const {
  const auto total = std::ssize(run.tokens);
  // The last token is always computed when its logits are wanted.
  const bool logits = run.request.prompt.logits != nullptr;
  const int64_t whole = (logits ? total - 1 : total) / block_tokens_ * block_tokens_;
  run.end = SharedSegmentEnd(selection_, run.request.prompt.prefix_end, whole, block_tokens_);
  run.report.shared = run.end > 0;
  if (run.request.prompt.prefix_end == 0 && run.end == 0 &&
      selection_.FirstObserved(total) < total) {
    // The last tokens, whose queries decide, are the question. No other request has it.
    run.end = total;
  }
}

void SelectedPrompts::FindAndFetch(Run& run) {
  const Request& request = run.request;
  PromptReport& report = run.report.prompt;
  run.chain = session_->Keys(run.tokens.first(static_cast<size_t>(run.end)));
  const auto blocks = static_cast<uint32_t>(run.chain.size());
  SegmentSession::Found found =
      segments_->Find(run.chain, prefiller_.tokens_per_second(), request.prompt.trace);
  report.match_seconds = found.seconds;
  report.miss_reason = found.path.blocks() == blocks ? MissReason::kNone : found.reason;
  const double matched = Seconds(clock_.Now() - run.start);
  report.timeline.push_back(
      {TimelineSpan::Kind::kMatch, TimelineSpan::kAllLayers, 0, found.path.blocks(), 0, matched});
  if (found.path.blocks() > 0) {
    PrefixSession::FetchWanted wanted;
    wanted.prompt_tokens = std::ssize(run.tokens);
    wanted.chunk_tokens = prefiller_.chunk_tokens();
    wanted.prefill = prefiller_.model();
    wanted.trace = request.prompt.trace;
    SegmentSession::Fetched fetched =
        segments_->Fetch(std::move(found), wanted, transformer_.thread_pool(), request.make_room);
    report.fetched = fetched.bytes;
    report.fetch_seconds = fetched.seconds;
    report.path = fetched.way;
    if (fetched.reason != MissReason::kNone) report.miss_reason = fetched.reason;
    report.timeline.push_back({TimelineSpan::Kind::kFetch, TimelineSpan::kAllLayers, 0,
                               fetched.path.blocks(), matched, Seconds(clock_.Now() - run.start)});
    run.path = std::move(fetched.path);
    if (fetched.prefix != nullptr) run.sequence.SetPrefix(std::move(fetched.prefix));
  }
  if (run.path.blocks() < blocks) {
    session_->CountMissed(report.miss_reason, blocks - run.path.blocks());
  }
}

Status SelectedPrompts::MakeSegment(Run& run) {
  const int64_t begin = run.sequence.length();
  SegmentSelection selecting(
      selection_, model_, run.sequence,
      run.tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(run.end - begin)), begin,
      transformer_.thread_pool());
  std::function<void(const ChunkQueries&)> observe;
  if (selecting.observes()) {
    observe = [&](const ChunkQueries& queries) { selecting.Observe(queries); };
  }
  CAIRN_RETURN_IF_ERROR(Prefill(run, run.end, observe));
  run.kept = selecting.Select(run.request.prompt.trace);
  run.sequence.Compact([&](int layer, int head) { return run.kept.Rows(layer, head); });
  if (run.report.shared && run.request.prompt.use_cache && push_ != nullptr) Push(run);
  return OkStatus();
}

Status SelectedPrompts::Prefill(Run& run, int64_t end,
                                const std::function<void(const ChunkQueries&)>& observe) {
  const int64_t begin = run.sequence.length();
  Prefiller::Job job;
  job.tokens = run.tokens.first(static_cast<size_t>(end));
  job.sequence = &run.sequence;
  job.logits = end == std::ssize(run.tokens) ? run.request.prompt.logits : nullptr;
  job.observe = observe;
  job.stop = run.request.prompt.stop;
  job.block_seconds = &run.block_seconds;
  const TimePoint start = clock_.Now();
  const Status status = prefiller_.Run(job);
  if (run.sequence.length() > begin) {
    run.report.prompt.timeline.push_back(
        {TimelineSpan::Kind::kCompute, TimelineSpan::kAllLayers,
         static_cast<uint32_t>(begin / block_tokens_),
         static_cast<uint32_t>((run.sequence.length() + block_tokens_ - 1) / block_tokens_),
         Seconds(start - run.start), Seconds(clock_.Now() - run.start)});
  }
  return status;
}

Status SelectedPrompts::Reserve(const Run& run, int64_t tokens) {
  const Status status = run.sequence.Reserve(tokens);
  if (status.code() != StatusCode::kResourceExhausted) return status;
  run.request.make_room();
  return run.sequence.Reserve(tokens);
}

void SelectedPrompts::Push(const Run& run) {
  std::vector<ComputedBlock> blocks = segments_->NewSegment(
      run.path, run.chain.back(), static_cast<uint32_t>(run.chain.size()), run.kept,
      run.sequence.prefix(), run.block_seconds, run.request.prompt.trace);
  push_->Enqueue(session_->fingerprint(), session_->codec(), std::move(blocks));
}

Step SelectedPrompt::Next(int64_t /*max_rows*/, bool /*alone*/) {
  report_ = prompts_.Compute(*request_).prompt;
  request_.reset();  // It holds the sequence.
  return {Step::Kind::kWorked};
}

}  // namespace cairn::worker
