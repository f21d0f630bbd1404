#include "services/worker/generate/prompt_kv.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace cairn::worker {
namespace {

// Copying and sending would take processor time from the prefill.
class PushPause {
 public:
  explicit PushPause(PushQueue* push) : push_(push) {
    if (push_ != nullptr) push_->Pause();
  }
  ~PushPause() {
    if (push_ != nullptr) push_->Resume();
  }
  PushPause(const PushPause&) = delete;
  PushPause& operator=(const PushPause&) = delete;

 private:
  PushQueue* const push_;
};

}  // namespace

PromptKv::PromptKv(Transformer& transformer, const Clock& clock, PrefixSession* session,
                   PushQueue* push)
    : transformer_(transformer),
      session_(session),
      push_(push),
      prefiller_(transformer, clock),
      block_tokens_(transformer.kv_layout().block_tokens) {}

PromptKv::Report PromptKv::Compute(const Request& request) {
  const PushPause pause(request.background ? nullptr : push_);
  const bool use_cache = request.use_cache && session_ != nullptr;
  std::vector<BlockKey> keys;
  if (use_cache) keys = session_->Keys(request.tokens);

  Report report;
  const int64_t held = request.sequence->length();
  FetchAndPrefill(request, keys, &report);
  const int64_t there = std::max<int64_t>(held, report.fetched_blocks * block_tokens_);
  report.computed_tokens =
      static_cast<uint32_t>(std::max<int64_t>(0, request.sequence->length() - there));
  if (use_cache) Push(request, keys, static_cast<uint32_t>(there / block_tokens_));
  return report;
}

void PromptKv::FetchAndPrefill(const Request& request, std::span<const BlockKey> keys,
                               Report* report) {
  KvSequence& sequence = *request.sequence;
  const auto total = std::ssize(request.tokens);
  // The last token is always computed when its logits are wanted.
  if (request.logits != nullptr) {
    keys = keys.first(std::min(keys.size(), static_cast<size_t>((total - 1) / block_tokens_)));
  }
  if (keys.empty()) {
    report->status = Prefill(request, nullptr);
    return;
  }

  const double speed = prefiller_.tokens_per_second();
  PrefixSession::Match match = session_->Lookup(keys, speed, request.trace);
  report->match_seconds = match.seconds;
  report->miss_reason = match.reason;
  const uint32_t matched = match.blocks;
  const int64_t matched_tokens = matched * block_tokens_;
  if (sequence.length() > 0) {
    // Idle work on pages that a push may be reading: they are not fetched over.
    if (matched < keys.size()) report->status = Prefill(request, nullptr);
    return;
  }
  if (matched == 0) {
    session_->CountMissed(match.reason, keys.size());
    report->status = Prefill(request, nullptr);
    return;
  }

  std::unique_ptr<PrefixFetch> fetch =
      session_->Fetch(std::move(match), sequence,
                      speed > 0 ? static_cast<double>(matched_tokens) / speed : 0, request.trace);
  const bool overlap = session_->options().overlap && matched_tokens < total;
  if (overlap) {
    sequence.SetLength(matched_tokens);
    report->status = Prefill(request, [&](int layer) { return fetch->WaitLayer(layer); });
    if (report->status.code() == StatusCode::kCancelled) {
      // Not worth waiting for; what has been computed stands on KV that may never have come.
      fetch.reset();
      sequence.SetLength(0);
      return;
    }
  }
  const PrefixFetch::Outcome outcome = fetch->Finish();
  report->fetched = outcome.bytes;
  report->fetch_seconds = outcome.seconds;
  report->fetched_blocks = outcome.blocks;
  if (outcome.blocks < matched) report->miss_reason = outcome.reason;
  if (outcome.blocks < keys.size()) {
    session_->CountMissed(report->miss_reason, keys.size() - outcome.blocks);
  }
  // A fetch that was given up as late may have brought the rest just then.
  const bool gave_up = report->status.code() == StatusCode::kAborted;
  if (overlap && outcome.blocks == matched && !gave_up) return;
  // Nothing was computed yet, or it stands on KV that did not come.
  sequence.SetLength(outcome.blocks * block_tokens_);
  report->status = Prefill(request, nullptr);
}

Status PromptKv::Prefill(const Request& request,
                         const std::function<Status(int)>& before_layer) {
  if (request.sequence->length() == std::ssize(request.tokens)) return OkStatus();
  Prefiller::Job job;
  job.tokens = request.tokens;
  job.sequence = request.sequence.get();
  job.logits = request.logits;
  job.chunk_tokens = request.background ? block_tokens_ : 0;
  job.before_layer = before_layer;
  job.stop = request.stop;
  return prefiller_.Run(job);
}

void PromptKv::Push(const Request& request, std::span<const BlockKey> keys,
                    uint32_t first_computed) {
  const KvSequence& sequence = *request.sequence;
  const auto end = std::min<size_t>(
      keys.size(), static_cast<size_t>(sequence.length() / block_tokens_));
  std::vector<ComputedBlock> blocks;
  for (size_t b = first_computed; b < end; ++b) {
    ComputedBlock block;
    block.key = keys[b];
    if (b > 0) block.parent = keys[b - 1];
    block.first_position = b * static_cast<uint64_t>(block_tokens_);
    block.compute_seconds = prefiller_.block_seconds()[b];
    // A page is its layers' slices one after the other.
    block.page = {sequence.LayerSlice(static_cast<int64_t>(b), 0).data(),
                  sequence.layout().page_bytes()};
    block.hold = request.sequence;
    block.trace = request.trace;
    blocks.push_back(std::move(block));
  }
  if (!blocks.empty()) push_->Enqueue(session_->fingerprint(), std::move(blocks));
}

}  // namespace cairn::worker
