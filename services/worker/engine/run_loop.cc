#include "services/worker/engine/run_loop.h"

#include <algorithm>
#include <utility>

namespace cairn::worker {

RunLoop::RunLoop(const RequestParts& parts, Scheduler& scheduler)
    : parts_(parts), scheduler_(scheduler), alone_(scheduler.max_running() == 1) {
  CAIRN_CHECK(scheduler.max_running() >= 1);
}

void RunLoop::Add(std::shared_ptr<Job> job) {
  CAIRN_CHECK(HasRoom());
  runs_.push_back(std::make_unique<RequestRun>(parts_, std::move(job), next_id_++, alone_));
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

RunLoop::Chunks RunLoop::Collect(Round* round) {
  std::vector<Scheduler::Candidate> candidates;
  for (const auto& run : runs_) {
    candidates.push_back({run->id(), run->state() == RequestRun::State::kDecode});
  }
  Chunks work;
  for (const size_t index : scheduler_.Pick(candidates)) {
    RequestRun& run = *runs_.at(index);
    const worker::Step step = run.Next(parts_.transformer.max_rows() - work.rows);
    if (step.kind != worker::Step::Kind::kWaiting) round->progressed = true;
    if (step.kind != worker::Step::Kind::kChunk) continue;
    work.runs.push_back(&run);
    work.chunks.push_back(step.chunk);
    work.rows += std::ssize(step.chunk.tokens);
  }
  return work;
}

void RunLoop::Compute(const Chunks& work) {
  const TimePoint start = parts_.clock.Now();
  const Status status = parts_.transformer.Forward(work.chunks);
  const double seconds = Seconds(parts_.clock.Now() - start);
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
  for (const auto& run : runs_) run->WaitBriefly();
}

}  // namespace cairn::worker
