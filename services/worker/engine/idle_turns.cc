#include "services/worker/engine/idle_turns.h"

#include <algorithm>
#include <utility>

namespace cairn::worker {

void IdleTurns::Keep(const Job& job, const GenerateSummary& summary,
                     std::shared_ptr<KvSequence> sequence) {
  const int64_t block_tokens = parts_.pool.layout().block_tokens;
  // A turn whose prompt did not fit does not fit either.
  if (job.TokensNeeded() > parts_.pool.total_pages() * block_tokens) return;
  // Neither does one of which tokens were dropped.
  if (job.prompt().dropped > 0) return;
  if (job.request().no_cache || job.request().prefill_only ||
      summary.finish_reason == "cancelled") {
    return;
  }
  const std::vector<model::TokenId>& prompt = job.prompt().tokens;
  Turn turn;
  turn.tokens = parts_.finished_turn(job, summary);
  turn.trace = job.request().trace;
  const auto block = static_cast<size_t>(block_tokens);
  turn.tokens.resize(turn.tokens.size() / block * block);
  const auto same = static_cast<size_t>(
      std::mismatch(prompt.begin(), prompt.end(), turn.tokens.begin(), turn.tokens.end()).first -
      prompt.begin());
  const size_t exact = same / block * block;
  if (turn.tokens.size() <= exact) return;  // The request itself has pushed all of it.
  // The tokens of decode steps are not of exact lineage: they are computed again. A turn that
  // departs from the prompt before its last full block starts on pages of its own: the prompt's may
  // still be read by a push. And so may a turn whose prompt was fetched in a lossy form: what is
  // computed over it has keys that begin with a fetch. The pages of a prompt that was read by rows
  // are gone.
  if (exact == prompt.size() / block * block && !parts_.lossy && sequence->base() == 0) {
    sequence->Truncate(static_cast<int64_t>(exact));
    // It may wait for long: the node gets its memory back.
    if (sequence->CopyOut()) turn.sequence = std::move(sequence);
  }
  MutexLock lock(mu_);
  if (turns_.size() >= parts_.most) {
    if (!turns_.empty()) turns_.pop_front();
    ++totals_.dropped;
  }
  if (parts_.most > 0) turns_.push_back(std::move(turn));
}

IdleTurns::Progress IdleTurns::Step() {
  const bool pushing = parts_.pushing();
  Turn turn;
  {
    MutexLock lock(mu_);
    if (turns_.empty()) return Progress::kIdle;
    // A turn without pages fetches what its request has pushed. Before that is at the node it would
    // compute the whole prompt once more.
    if (turns_.front().sequence == nullptr && pushing) return Progress::kWaiting;
    turn = std::move(turns_.front());
    turns_.pop_front();
    running_ = true;
  }
  Prefill(std::move(turn));
  return Progress::kWorked;
}

void IdleTurns::Prefill(Turn turn) {
  if (turn.sequence == nullptr) {
    turn.sequence = std::make_shared<KvSequence>(parts_.pool.NewSequence());
  }
  Status status = turn.sequence->Reserve(static_cast<int64_t>(turn.tokens.size()));
  PromptReport report;
  if (status.ok()) {
    PromptRequest wanted;
    wanted.tokens = turn.tokens;
    wanted.sequence = turn.sequence;
    wanted.use_cache = true;
    wanted.background = true;
    wanted.trace = turn.trace;
    wanted.stop = parts_.stop;
    report = parts_.compute(wanted);
    status = report.status;
  }
  MutexLock lock(mu_);
  running_ = false;
  totals_.prefilled_tokens += report.computed_tokens;
  if (status.code() == StatusCode::kCancelled) {
    // The computed blocks are on their way to the cache and need not hold pages.
    turn.sequence = nullptr;
    turns_.push_front(std::move(turn));
  } else if (!status.ok()) {
    ++totals_.dropped;
  }
  changed_.NotifyAll();
}

void IdleTurns::DropPages() {
  MutexLock lock(mu_);
  for (Turn& turn : turns_) turn.sequence = nullptr;
}

void IdleTurns::Clear() {
  MutexLock lock(mu_);
  turns_.clear();
  changed_.NotifyAll();
}

bool IdleTurns::WaitNone(TimePoint deadline) const {
  MutexLock lock(mu_);
  return changed_.WaitUntil(
      mu_, parts_.clock, deadline,
      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return turns_.empty() && !running_; });
}

IdleTurns::Stats IdleTurns::GetStats() const {
  MutexLock lock(mu_);
  return totals_;
}

}  // namespace cairn::worker
