#include "services/worker/engine/run_loop.h"

#include <algorithm>
#include <utility>

namespace cairn::worker {

RunLoop::RunLoop(const RequestParts& parts, Scheduler& scheduler)
    : parts_(parts), scheduler_(scheduler) {
  CAIRN_CHECK(scheduler.max_running() >= 1);
}

void RunLoop::Add(std::shared_ptr<Job> job) {
  CAIRN_CHECK(HasRoom());
  runs_.push_back(std::make_unique<RequestRun>(parts_, std::move(job), next_id_++));
}

void RunLoop::Add(std::unique_ptr<RequestRun> run) {
  CAIRN_CHECK(HasRoom());
  const auto later =
      std::ranges::find_if(runs_, [&](const auto& one) { return one->id() > run->id(); });
  runs_.insert(later, std::move(run));
}

std::unique_ptr<RequestRun> RunLoop::TakeOut(size_t index) {
  std::unique_ptr<RequestRun> run = std::move(runs_.at(index));
  if (run->id() == wants_pages_) wants_pages_ = 0;
  runs_.erase(runs_.begin() + static_cast<std::ptrdiff_t>(index));
  return run;
}

RunLoop::Round RunLoop::Step() {
  Round round;
  const Chunks work = Collect(&round);
  if (!work.chunks.empty()) Compute(work);
  for (auto& run : runs_) {
    if (run->state() == RequestRun::State::kFinished) round.finished.push_back(std::move(run));
  }
  std::erase(runs_, nullptr);
  return round;
}

uint64_t RunLoop::near_bytes() const {
  uint64_t bytes = 0;
  for (const auto& run : runs_) bytes += run->near_bytes();
  return bytes;
}

std::vector<Scheduler::Candidate> RunLoop::Candidates() const {
  std::vector<Scheduler::Candidate> candidates;
  for (const auto& run : runs_) candidates.push_back(run->candidate());
  return candidates;
}

RunLoop::Chunks RunLoop::Collect(Round* round) {
  const std::vector<Scheduler::Candidate> candidates = Candidates();
  Chunks work;
  const StepPlan plan = scheduler_.Next(candidates, parts_.clock.Now());
  for (const size_t index : plan.order) {
    RequestRun& run = *runs_.at(index);
    int64_t rows = parts_.transformer.max_rows() - work.rows;
    if (!candidates[index].decoding) {
      rows = std::min(rows, plan.prefill_tokens - work.shape.prefill_tokens);
    }
    const worker::Step step = StepOne(run, rows);
    if (step.kind != worker::Step::Kind::kWaiting) round->progressed = true;
    if (step.kind == worker::Step::Kind::kChunk) work.Add(run, step.chunk);
  }
  return work;
}

worker::Step RunLoop::StepOne(RequestRun& run, int64_t rows) {
  const bool reserves = run.state() == RequestRun::State::kReserve;
  // Small requests must not take the pages that a large one waits for.
  if (reserves && wants_pages_ != 0 && run.id() > wants_pages_ && !run.job()->cancelled()) {
    return {worker::Step::Kind::kWaiting};
  }
  const worker::Step step = run.Next(rows, /*alone=*/runs_.size() == 1);
  if (!reserves) return step;
  if (step.kind == worker::Step::Kind::kWaiting) {
    wants_pages_ = run.id();
  } else if (run.id() == wants_pages_) {
    wants_pages_ = 0;
  }
  return step;
}

void RunLoop::Chunks::Add(RequestRun& run, const SequenceChunk& chunk) {
  const int64_t count = std::ssize(chunk.tokens);
  runs.push_back(&run);
  chunks.push_back(chunk);
  rows += count;
  if (chunk.phase == Phase::kDecode) {
    ++shape.decodes;
    return;
  }
  // The mean over all prompts of the pass.
  const int64_t middle = chunk.sequence->length() + count / 2;
  const int64_t before = shape.prefill_position * shape.prefill_tokens;
  shape.prefill_tokens += count;
  shape.prefill_position = (before + middle * count) / shape.prefill_tokens;
}

void RunLoop::Compute(const Chunks& work) {
  const TimePoint start = parts_.clock.Now();
  const Status status = parts_.transformer.Forward(work.chunks);
  const double seconds = Seconds(parts_.clock.Now() - start);
  if (status.ok()) scheduler_.Computed(work.shape, seconds);
  const bool shared = work.chunks.size() > 1;
  for (size_t i = 0; i < work.chunks.size(); ++i) {
    const SequenceChunk& chunk = work.chunks[i];
    const double share = static_cast<double>(chunk.tokens.size()) / static_cast<double>(work.rows);
    // A chunk that cannot be computed must not fail the others: each then has a pass of its own.
    const Status own = status.ok() || !shared ? status : parts_.transformer.Forward({&chunk, 1});
    work.runs[i]->Computed(own, {.seconds = seconds * share, .disturbed = shared});
  }
}

void RunLoop::WaitBriefly() {
  // One wait for all: what another run waits for is seen 10 ms late at most.
  for (const auto& run : runs_) {
    if (run->WaitBriefly()) return;
  }
}

}  // namespace cairn::worker
