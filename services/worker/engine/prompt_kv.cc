#include "services/worker/engine/prompt_kv.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "services/worker/engine/push_pause.h"

namespace cairn::worker {

struct PromptKv::Run {
  const Request& request;
  KvSequence& sequence;
  std::span<const BlockKey> keys;  // Of the blocks that may be fetched.
  int64_t total = 0;               // Tokens of the prompt.
  TimePoint start;
  uint32_t matched = 0;
  uint32_t exact = 0;  // Of the matched blocks, those of exact lineage.
  uint32_t front = 0;  // Blocks there: fetched whole, or computed.
  // What was to be computed before anything was measured.
  std::optional<uint32_t> first_target = {};
  // Published selections watch. Not where something was fetched, since they have not seen its
  // queries.
  bool selecting = false;
  Report report = {};
};

PromptKv::PromptKv(Transformer& transformer, const Clock& clock, PrefixSession* session,
                   PushQueue* push, std::span<const PublishedNamespace> published,
                   SelectionPublisher* selections)
    : transformer_(transformer),
      clock_(clock),
      session_(session),
      push_(push),
      published_(published),
      selections_(selections),
      prefiller_(transformer, clock),
      block_tokens_(transformer.kv_layout().block_tokens) {}

PromptKv::Report PromptKv::Compute(const Request& request) {
  const PushPause pause(request.background ? nullptr : push_);
  const bool use_cache = request.use_cache && session_ != nullptr;
  std::vector<BlockKey> keys;
  if (use_cache) keys = session_->Keys(request.tokens);

  Run run{request, *request.sequence, keys, std::ssize(request.tokens), clock_.Now()};
  // The last token is always computed when its logits are wanted.
  if (request.logits != nullptr) {
    run.keys =
        run.keys.first(std::min(keys.size(), static_cast<size_t>((run.total - 1) / block_tokens_)));
  }
  Report& report = run.report;
  const int64_t held = request.sequence->length();
  if (use_cache && selections_ != nullptr && held == 0) {
    selections_->Begin(request.tokens, request.prefix_end, std::ssize(run.keys) * block_tokens_,
                       *request.sequence);
    run.selecting = true;
  }
  prefiller_.Forget();
  FetchAndPrefill(run);
  int64_t there = std::max<int64_t>(held, report.fetched_blocks * block_tokens_);
  report.computed_tokens =
      static_cast<uint32_t>(std::max<int64_t>(0, request.sequence->length() - there));
  // The node has the blocks that were computed by choice.
  there += report.chosen_blocks * block_tokens_;
  if (use_cache && session_->codec().lossy()) {
    if (report.fetched_blocks > 0) {
      // The last block that was fetched in exact lineage is where this KV's lineage begins.
      keys = session_->KeysOverDecoded(
          request.tokens, std::min(run.exact, report.fetched_blocks + report.chosen_blocks));
    } else {
      // All of it was computed over exact KV, also what the node has in another lineage.
      there = std::min<int64_t>(there, run.exact * block_tokens_);
    }
  }
  run.keys = keys;
  if (use_cache) Push(run, static_cast<uint32_t>(there / block_tokens_));
  if (run.selecting && report.status.ok()) {
    selections_->Push(request.tokens, request.sequence, prefiller_.block_seconds(), request.trace);
  } else if (selections_ != nullptr) {
    selections_->Drop();
  }
  return std::move(report);
}

// Long: the fetch and the prefill are one loop, whose branches share what was measured.
void PromptKv::FetchAndPrefill(Run& run) {
  const Request& request = run.request;
  KvSequence& sequence = run.sequence;
  Report& report = run.report;
  if (run.keys.empty()) {
    report.status = Prefill(run, run.total, request.background, nullptr);
    return;
  }
  PrefixSession::Match match =
      session_->Lookup(run.keys, prefiller_.tokens_per_second(), request.trace);
  report.match_seconds = match.seconds;
  report.miss_reason = match.reason;
  report.timeline.push_back({TimelineSpan::Kind::kMatch, TimelineSpan::kAllLayers, 0, match.blocks,
                             0, Seconds(clock_.Now() - run.start)});
  run.exact = match.blocks;
  std::vector<BlockKey> over_decoded;
  if (session_->codec().lossy() && match.blocks > 0 && match.blocks < run.keys.size()) {
    // Further on there may be blocks that somebody computed over these, decoded.
    over_decoded = session_->KeysOverDecoded(request.tokens, match.blocks);
    PrefixSession::Match further = session_->Lookup(std::span(over_decoded).first(run.keys.size()),
                                                    prefiller_.tokens_per_second(), request.trace);
    if (further.blocks > match.blocks) match = std::move(further);
  }
  run.matched = match.blocks;
  if (sequence.length() > 0) {
    // Idle work on pages that a push may be reading: they are not fetched over.
    if (run.matched < run.keys.size()) {
      report.status = Prefill(run, run.total, request.background, nullptr);
    }
    return;
  }
  if (run.matched == 0) {
    session_->CountMissed(match.reason, run.keys.size());
    report.status = Prefill(run, run.total, request.background, nullptr);
    return;
  }

  run.selecting = false;
  const int64_t matched_tokens = run.matched * block_tokens_;
  PrefixSession::FetchWanted wanted;
  wanted.prompt_tokens = run.total;
  wanted.chunk_tokens = prefiller_.chunk_tokens();
  wanted.prefill = prefiller_.model();
  wanted.overlap = session_->options().overlap && matched_tokens < run.total;
  wanted.choose = session_->options().choose && wanted.overlap && !request.background;
  wanted.trace = request.trace;
  std::unique_ptr<PrefixFetch> fetch = session_->Fetch(std::move(match), sequence, wanted);
  if (wanted.overlap) {
    do {
      if (wanted.choose) report.status = ComputeFront(run, *fetch);
      if (report.status.ok()) report.status = ComputeRest(run, *fetch);
    } while (report.status.code() == StatusCode::kAborted && fetch->TurnedBack());
    if (report.status.code() == StatusCode::kCancelled) {
      // Not worth waiting for; what has been computed may stand on KV that never came.
      fetch.reset();
      sequence.SetLength(0);
      return;
    }
  }
  const bool done = wanted.overlap && report.status.ok();
  const PrefixFetch::Outcome outcome = fetch->Finish(/*wait=*/!done);
  fetch.reset();
  report.fetched = outcome.bytes;
  report.path = outcome.path;
  report.fetch_seconds = outcome.seconds;
  report.fetched_blocks = outcome.fetched_blocks;
  report.chosen_blocks = outcome.blocks - outcome.fetched_blocks;
  const double offset = Seconds(outcome.start - run.start);
  for (size_t layer = 0; layer < outcome.layers.size(); ++layer) {
    const FetchProgress::LayerTimes& times = outcome.layers[layer];
    if (times.last == 0) continue;
    report.timeline.push_back({TimelineSpan::Kind::kFetch, static_cast<int32_t>(layer), run.front,
                               run.matched, offset + times.first, offset + times.last});
  }
  if (outcome.blocks < run.matched) {
    report.miss_reason = outcome.reason;
  } else if (outcome.fetched_blocks == 0 && run.first_target.value_or(0) < run.matched) {
    report.miss_reason = MissReason::kDeadline;  // Computing was sooner, against expectation.
  }
  if (outcome.blocks < run.keys.size()) {
    session_->CountMissed(report.miss_reason, run.keys.size() - outcome.blocks);
  }
  uint32_t good = outcome.blocks;
  if (done && good == run.matched) {
    const int64_t broken = sequence.FirstBrokenLoan();
    if (broken == sequence.page_count()) return;
    // The node took its memory back while it was read.
    good = static_cast<uint32_t>(broken);
    report.miss_reason = MissReason::kUnavailable;
    report.fetched_blocks = std::min(report.fetched_blocks, good);
    report.chosen_blocks = good - report.fetched_blocks;
  }
  // Nothing was computed yet, or it stands on KV that did not come.
  for (int64_t page = good; page < sequence.page_count(); ++page) sequence.TakeBack(page);
  sequence.SetLength(good * block_tokens_);
  report.status = Prefill(run, run.total, request.background, nullptr);
  // What was just computed may have read lent pages, too.
  while (report.status.ok()) {
    const Status loans = CheckLoans(request.tokens, sequence);
    if (loans.ok()) break;
    report.status = loans;
    if (loans.code() != StatusCode::kAborted) break;
    sequence.SetLength(good * block_tokens_);
    report.status = Prefill(run, run.total, request.background, nullptr);
  }
}

Status PromptKv::ComputeFront(Run& run, PrefixFetch& fetch) {
  while (true) {
    const FetchProgress::Step step = fetch.Decide(run.front);
    run.front = step.front;
    if (!run.first_target) run.first_target = step.target;
    if (step.target <= run.front) return OkStatus();
    const int64_t begin = run.front * block_tokens_;
    // When everything is computed, a chunk may reach into the rest of the prompt.
    const int64_t most = step.target == run.matched ? run.total : step.target * block_tokens_;
    const int64_t end = std::min(begin + prefiller_.chunk_tokens(), most);
    const auto front_end =
        static_cast<uint32_t>(std::min<int64_t>(run.matched, end / block_tokens_));
    if (!fetch.Claim(run.front, front_end)) return OkStatus();
    run.sequence.SetLength(begin);
    fetch.SetComputing(true);
    const TimePoint start = clock_.Now();
    const Status status = Prefill(run, end, /*disturbed=*/true, nullptr);
    fetch.Computed(Seconds(clock_.Now() - start), prefiller_.model().Seconds(begin, end - begin));
    fetch.SetComputing(false);
    CAIRN_RETURN_IF_ERROR(status);
    run.front = front_end;
    if (end > run.matched * block_tokens_) return OkStatus();
  }
}

Status PromptKv::ComputeRest(Run& run, PrefixFetch& fetch) {
  const int64_t begin = run.matched * block_tokens_;
  if (run.front == run.matched) {
    fetch.Cancel();  // Nothing of it is wanted any more.
    run.sequence.SetLength(std::max(begin, run.sequence.length()));
    return Prefill(run, run.total, false, nullptr);
  }
  if (fetch.Broken()) return Errorf(StatusCode::kAborted, "fetch: over");
  run.sequence.SetLength(begin);
  const auto end_block = static_cast<uint32_t>((run.total + block_tokens_ - 1) / block_tokens_);
  TimePoint computing = clock_.Now();
  const auto span = [&](int layer) {
    run.report.timeline.push_back({TimelineSpan::Kind::kCompute, layer, run.matched, end_block,
                                   Seconds(computing - run.start),
                                   Seconds(clock_.Now() - run.start)});
  };
  int last = 0;
  const size_t spans = run.report.timeline.size();
  const Status status = Prefill(run, run.total, /*disturbed=*/true, [&](int layer) -> Status {
    if (layer > 0) span(layer - 1);
    last = layer;
    if (run.request.stop && run.request.stop()) {
      return Status(StatusCode::kCancelled, "prefill stopped");
    }
    const Status there = fetch.WaitLayer(layer, run.front);
    computing = clock_.Now();
    return there;
  });
  if (status.ok()) {
    span(last);
  } else {
    run.report.timeline.resize(spans);  // Thrown away.
  }
  return status;
}

Status PromptKv::Prefill(Run& run, int64_t end, bool disturbed,
                         const std::function<Status(int)>& before_layer) {
  const int64_t begin = run.sequence.length();
  if (begin == end) return OkStatus();
  Prefiller::Job job;
  job.tokens = run.request.tokens.first(static_cast<size_t>(end));
  job.sequence = &run.sequence;
  job.logits = end == run.total ? run.request.logits : nullptr;
  job.chunk_tokens = run.request.background ? block_tokens_ : 0;
  job.before_layer = before_layer;
  if (run.selecting) {
    job.observe = [this](const ChunkQueries& queries) { selections_->Observe(queries); };
  }
  job.disturbed = disturbed;
  job.stop = run.request.stop;
  const TimePoint start = clock_.Now();
  const Status status = prefiller_.Run(job);
  if (before_layer == nullptr && run.sequence.length() > begin) {
    run.report.timeline.push_back(
        {TimelineSpan::Kind::kCompute, TimelineSpan::kAllLayers,
         static_cast<uint32_t>(begin / block_tokens_),
         static_cast<uint32_t>((run.sequence.length() + block_tokens_ - 1) / block_tokens_),
         Seconds(start - run.start), Seconds(clock_.Now() - run.start)});
  }
  return status;
}

Status PromptKv::CheckLoans(std::span<const TokenId> prompt, KvSequence& sequence) {
  const int64_t broken = sequence.FirstBrokenLoan();
  if (broken == sequence.page_count()) return OkStatus();
  const int64_t length = sequence.length();
  int64_t end = broken;
  for (int64_t page = broken; page < sequence.page_count(); ++page) {
    if (!sequence.lent(page)) continue;
    sequence.TakeBack(page);
    end = page + 1;
  }
  sequence.SetLength(broken * block_tokens_);
  Prefiller::Job job;
  job.tokens = prompt.first(static_cast<size_t>(end * block_tokens_));
  job.sequence = &sequence;
  CAIRN_RETURN_IF_ERROR(prefiller_.Run(job));
  sequence.SetLength(length);
  return Status(StatusCode::kAborted, "the node took lent memory back");
}

void PromptKv::Push(const Run& run, uint32_t first_computed) {
  std::vector<ComputedBlock> blocks = Blocks(run, run.keys, first_computed);
  if (blocks.empty()) return;
  push_->Enqueue(session_->fingerprint(), session_->codec(), std::move(blocks));
  if (session_->codec().lossy() && run.report.fetched_blocks > 0) return;  // Not of exact lineage.
  for (const PublishedNamespace& target : published_) {
    if (target.selection != nullptr) continue;
    const std::vector<BlockKey> keys =
        BlockKeyChain(target.fingerprint)
            .Keys(run.request.tokens, static_cast<uint32_t>(block_tokens_));
    push_->Enqueue(target.fingerprint, *target.codec, Blocks(run, keys, first_computed));
  }
}

std::vector<ComputedBlock> PromptKv::Blocks(const Run& run, std::span<const BlockKey> keys,
                                            uint32_t first) const {
  const KvSequence& sequence = run.sequence;
  const auto end =
      std::min<size_t>(keys.size(), static_cast<size_t>(sequence.length() / block_tokens_));
  std::vector<ComputedBlock> blocks;
  for (size_t b = first; b < end; ++b) {
    ComputedBlock block;
    block.key = keys[b];
    if (b > 0) block.parent = keys[b - 1];
    block.first_position = b * static_cast<uint64_t>(block_tokens_);
    block.compute_seconds = prefiller_.block_seconds()[b];
    // A page is its layers' slices one after the other.
    block.page = {sequence.LayerSlice(static_cast<int64_t>(b), 0).data(),
                  sequence.layout().page_bytes()};
    block.hold = run.request.sequence;
    block.trace = run.request.trace;
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace cairn::worker
