#include "services/worker/engine/prompt_kv.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "services/worker/engine/prompt_run.h"

namespace cairn::worker {

PromptKv::PromptKv(Transformer& transformer, const Clock& clock, PrefixSession* session,
                   PushQueue* push, std::span<const PublishedNamespace> published,
                   StagePublisher* selections, PushQueue* urgent)
    : transformer_(transformer),
      clock_(clock),
      session_(session),
      push_(push),
      urgent_(urgent != nullptr ? urgent : push),
      published_(published),
      selections_(selections),
      prefiller_(transformer, clock),
      block_tokens_(transformer.kv_layout().block_tokens) {}

PromptReport PromptKv::Compute(const PromptRequest& request) {
  PromptRun run(*this, request);
  while (true) {
    const Step step = run.Next(transformer_.max_rows(), /*alone=*/true);
    if (step.kind == Step::Kind::kFinished) return run.TakeReport();
    if (step.kind != Step::Kind::kChunk) continue;
    const TimePoint start = clock_.Now();
    const Status status = transformer_.Forward({&step.chunk, 1});
    run.Computed(status, {.seconds = Seconds(clock_.Now() - start)});
  }
}

std::optional<BlockKey> PromptKv::ContextKey(std::span<const TokenId> tokens) const {
  if (session_ == nullptr) return std::nullopt;
  return session_->Keys(tokens).back();
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

void PromptKv::Push(const PromptRun& run, uint32_t first_computed) {
  std::vector<ComputedBlock> blocks = Blocks(run, run.keys_, first_computed);
  if (blocks.empty()) return;
  PushQueue& queue = run.request_.hand_over ? *urgent_ : *push_;
  queue.Enqueue(session_->fingerprint(), session_->codec(), std::move(blocks));
  if (session_->codec().lossy() && run.report_.fetched_blocks > 0) return;  // Not of exact lineage.
  if (!run.request_.keys.empty()) return;                                   // Neither.
  for (const PublishedNamespace& target : published_) {
    if (target.stage != nullptr) continue;
    const std::vector<BlockKey> keys =
        BlockKeyChain(target.ns.fingerprint)
            .Keys(run.request_.tokens, static_cast<uint32_t>(block_tokens_));
    push_->Enqueue(target.ns.fingerprint, *target.codec, Blocks(run, keys, first_computed));
  }
}

std::vector<ComputedBlock> PromptKv::Blocks(const PromptRun& run, std::span<const BlockKey> keys,
                                            uint32_t first) const {
  const KvSequence& sequence = run.sequence_;
  const auto end =
      std::min<size_t>(keys.size(), static_cast<size_t>(sequence.length() / block_tokens_));
  std::vector<ComputedBlock> blocks;
  for (size_t b = first; b < end; ++b) {
    // Whoever computed it pushes it, but perhaps later than another worker needs it.
    if (run.adopted_[b] && !run.request_.hand_over) continue;
    ComputedBlock block;
    block.key = keys[b];
    if (b > 0) block.parent = keys[b - 1];
    block.first_position = b * static_cast<uint64_t>(block_tokens_);
    block.compute_seconds = run.block_seconds_[b];
    // A page is its layers' slices one after the other.
    block.page = {sequence.LayerSlice(static_cast<int64_t>(b), 0).data(),
                  sequence.layout().page_bytes()};
    block.hold = run.request_.sequence;
    block.stamp = run.sequence_.PageStamp(static_cast<int64_t>(b));
    block.trace = run.request_.trace;
    if (keys.data() == run.keys_.data()) block.promise = run.promise_;
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace cairn::worker
