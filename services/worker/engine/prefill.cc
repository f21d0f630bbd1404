#include "services/worker/engine/prefill.h"

#include <algorithm>

namespace cairn::worker {

Prefiller::Prefiller(Transformer& transformer, const Clock& clock)
    : transformer_(transformer),
      clock_(clock),
      block_tokens_(transformer.kv_layout().block_tokens) {}

Status Prefiller::Run(const Job& job) {
  const auto total = static_cast<int64_t>(job.tokens.size());
  int64_t chunk_tokens = job.chunk_tokens == 0 ? transformer_.max_rows() : job.chunk_tokens;
  chunk_tokens = std::max(block_tokens_, chunk_tokens / block_tokens_ * block_tokens_);
  chunk_tokens = std::min(chunk_tokens, transformer_.max_rows());
  bool first = true;
  while (job.sequence->length() < total) {
    if (job.stop && job.stop()) return Status(StatusCode::kCancelled, "prefill stopped");
    const int64_t begin = job.sequence->length();
    const bool waits = first && job.before_layer != nullptr;
    const int64_t count =
        std::min(waits ? transformer_.max_wide_rows() : chunk_tokens, total - begin);
    SequenceChunk chunk;
    chunk.sequence = job.sequence;
    chunk.tokens = job.tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    chunk.phase = Phase::kPrefill;
    if (begin + count == total) chunk.logits = job.logits;
    if (waits) chunk.before_layer = job.before_layer;
    chunk.observe = job.observe;
    first = false;

    const TimePoint start = clock_.Now();
    CAIRN_RETURN_IF_ERROR(transformer_.Forward({&chunk, 1}));
    Measure(begin, count, Seconds(clock_.Now() - start), waits || job.disturbed, job.block_seconds);
  }
  return OkStatus();
}

Status Prefiller::CheckLoans(std::span<const model::TokenId> prompt, KvSequence& sequence) {
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
  Job job;
  job.tokens = prompt.first(static_cast<size_t>(end * block_tokens_));
  job.sequence = &sequence;
  CAIRN_RETURN_IF_ERROR(Run(job));
  sequence.SetLength(length);
  return Status(StatusCode::kAborted, "the node took lent memory back");
}

void Prefiller::Measure(int64_t begin, int64_t count, double seconds, bool disturbed,
                        std::vector<double>* block_seconds) {
  const double blocks = static_cast<double>(count) / static_cast<double>(block_tokens_);
  const int64_t end = begin + count;
  if (block_seconds != nullptr) {
    for (int64_t b = begin / block_tokens_; b * block_tokens_ < end; ++b) {
      (*block_seconds)[static_cast<size_t>(b)] = seconds / blocks;
    }
  }
  // A chunk that waited for a fetch, or that is shorter than a block, says little about the speed.
  if (disturbed || count < block_tokens_ || seconds <= 0) return;
  model_.Observe(begin, count, seconds);
  const double speed = static_cast<double>(count) / seconds;
  constexpr double kNewWeight = 0.25;
  tokens_per_second_ =
      tokens_per_second_ == 0 ? speed : (1 - kNewWeight) * tokens_per_second_ + kNewWeight * speed;
}

}  // namespace cairn::worker
