#include "services/worker/engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "services/worker/engine/prompt.h"
#include "services/worker/engine/spilled_prompt.h"
#include "services/worker/scheduling/preemption.h"

namespace cairn::worker {

EngineCore::EngineCore(EngineParts parts, Executor* executor)
    : parts_(std::move(parts)),
      clock_(*parts_.clock),
      cache_(parts_.cache != nullptr ? std::make_unique<EngineCache>(parts_, *executor, wakeup_)
                                     : nullptr),
      order_(*parts_.accounts),
      queue_({.capacity = parts_.options.queue_capacity,
              .tenant_capacity = parts_.options.tenant_queue_capacity,
              .max_wait_seconds = Seconds(parts_.options.queue_max_wait)},
             *parts_.accounts, parts_.options.tenant, clock_, wakeup_),
      look_ahead_(cache_ != nullptr
                      ? std::make_unique<const LookAhead>(cache_->client(), cache_->session())
                      : nullptr),
      admission_(AdmissionTerms(), queue_, look_ahead_.get(), clock_, wakeup_,
                 [this](Job& job, Result<GenerateSummary> outcome) {
                   FinishJob(job, std::move(outcome));
                 }),
      services_(parts_, cache_.get(), executor, MakeHooks()),
      loop_(services_.parts(), *parts_.scheduler),
      idle_turns_(IdleTurnParts()) {}

Admission::Terms EngineCore::AdmissionTerms() const {
  return {.role = parts_.options.role,
          .no_prefill_only = cache_ == nullptr         ? "this worker has no cache node to push to"
                             : parts_.stage != nullptr ? "this worker's recipe selects tokens"
                                                       : "",
          .kv = parts_.pool->layout(),
          .pool_tokens = parts_.pool->total_pages() * int64_t{BlockTokens()},
          .reading = parts_.reading.get(),
          .places = parts_.scheduler->max_running()};
}

RequestServices::Hooks EngineCore::MakeHooks() {
  return {.cancel_all = cancel_all_,
          .wakeup = wakeup_,
          .reserve = [this](KvSequence& sequence,
                            int64_t tokens) { return ReserveKv(sequence, tokens); },
          .company = [this] { return loop_.HasRoom() && queue_.size() > 0; },
          .spare_pages = [this] { return SparePages(); },
          .spilled =
              [this](const SpillStats& stats) {
                MutexLock lock(mu_);
                totals_.spill += stats;
              }};
}

IdleTurns::Parts EngineCore::IdleTurnParts() {
  return {.pool = *parts_.pool,
          .clock = clock_,
          .lossy = services_.prompt_kv().lossy(),
          .most = parts_.options.idle_turns,
          .finished_turn =
              [this](const Job& job, const GenerateSummary& summary) {
                return FinishedTurn(*parts_.model, context(), job.request(), job.prompt(), summary);
              },
          .compute =
              [this](const PromptRequest& wanted) { return services_.prompt_kv().Compute(wanted); },
          .stop = [this] { return queue_.size() > 0 || queue_.closed(); },
          .pushing = [this] { return cache_ != nullptr && cache_->pushing(); }};
}

Result<GenerateSummary> EngineCore::Generate(const GenerateRequest& request,
                                             const GenerateCallbacks& callbacks) {
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Job> job, Submit(request));
  return job->Consume(callbacks);
}

Result<std::shared_ptr<Job>> EngineCore::Submit(const GenerateRequest& request) {
  CAIRN_ASSIGN_OR_RETURN(PreparedPrompt prompt,
                         PreparePrompt(*parts_.model, context(), BlockTokens(), request));
  return admission_.Admit(request, std::move(prompt));
}

void EngineCore::Run() {
  uint64_t seen = wakeup_.Now();
  while (true) {
    switch (Step()) {
      case Progress::kWorked:
        seen = wakeup_.Now();
        break;
      case Progress::kWaiting:
      case Progress::kIdle:
        // The scheduler may not have asked all.
        if (!loop_.AllWait()) break;
        wakeup_.WaitPast(seen, clock_, WakeAt());
        loop_.Forget();
        seen = wakeup_.Now();
        break;
      case Progress::kFinished:
        return;
    }
  }
}

TimePoint EngineCore::WakeAt() const {
  TimePoint first = std::min(loop_.WakeAt(), queue_.FirstDeadline());
  for (const Parked& one : parked_) first = std::min(first, one.run->WakeAt());
  return first;
}

EngineCore::Progress EngineCore::Step() {
  StartJobs();
  if (!loop_.empty()) {
    RunLoop::Round round = loop_.Step();
    for (auto& run : round.finished) FinishRun(std::move(run));
    // The next step sees to pages for those that lack them.
    return round.progressed || loop_.starved() ? Progress::kWorked : Progress::kWaiting;
  }
  if (queue_.closed()) return queue_.size() == 0 ? Progress::kFinished : Progress::kWorked;
  switch (idle_turns_.Step()) {
    case IdleTurns::Progress::kWorked:
      return Progress::kWorked;
    case IdleTurns::Progress::kWaiting:
      return Progress::kWaiting;
    case IdleTurns::Progress::kIdle:
      break;
  }
  return Progress::kIdle;
}

void EngineCore::StartJobs() {
  for (const auto& ended : queue_.TakeEnded()) {
    FinishJob(*ended, EndedSummary(*ended, clock_.Now()));
  }
  EndParked();
  Account();
  if (loop_.starved()) return ParkForPages();  // Nobody begins with pages that others wait for.
  while (StartOne() || ParkOne()) {
  }
}

void EngineCore::Start(std::shared_ptr<Job> job) {
  running_.push_back({.job = job,
                      .meter = UsageMeter(clock_.Now()),
                      .pages = PagesFor(services_.parts().TokensToBegin(*job))});
  loop_.Add(std::move(job));
}

void EngineCore::StartAgain(std::unique_ptr<RequestRun> run) {
  running_.push_back({.job = run->job(),
                      .meter = UsageMeter(clock_.Now(), run->job()->generated()),
                      .pages = PagesFor(run->TokensToBegin())});
  loop_.Add(std::move(run));
}

int64_t EngineCore::SparePages() const {
  int64_t pages = parts_.pool->free_pages();
  for (const Running& one : running_) {
    pages -= one.pages;
    const int64_t needed = one.job->TokensNeeded();
    if (PagesFor(needed) <= parts_.pool->total_pages()) continue;
    // It is spilt as it goes, and fails without the pages to go on.
    const int64_t answer = needed - std::ssize(one.job->prompt().tokens);
    const int64_t least = PagesFor(SpilledPrompt::LeastTokens(BlockTokens(), answer));
    pages -= std::max<int64_t>(0, least - loop_.PagesOf(*one.job));
  }
  return pages;
}

bool EngineCore::StartOne() {
  if (!loop_.HasRoom()) return false;
  const int64_t spare = SparePages();
  // A request that is alone gets whatever the engine can spare.
  const auto fits = [&](int64_t tokens) { return running_.empty() || PagesFor(tokens) <= spare; };
  const auto priority = [&](const PromptClaim& claim) {
    return order_.Rank(claim, 0, clock_.Now()).priority;  // Negated: smaller is more urgent.
  };
  const auto parked = std::ranges::min_element(
      parked_, {}, [&](const Parked& one) { return priority(one.run->job()->claim()); });
  const std::optional<PromptClaim> first = queue_.FirstClaim();
  bool passes = false;
  if (parked != parked_.end()) {
    const int32_t urgency = priority(parked->run->job()->claim());
    if (!first || priority(*first) >= urgency) {
      if (fits(parked->run->TokensToBegin())) {
        StartAgain(std::move(parked->run));
        parked_.erase(parked);
        return true;
      }
      // It lets others go before it, as one that waits in the queue does.
      passes = first && priority(*first) == urgency && parked->passes < PromptQueue::kMostPasses;
      if (!passes) return false;
    }
  }
  std::shared_ptr<Job> job =
      queue_.Take([&](const Job& one) { return fits(services_.parts().TokensToBegin(one)); });
  if (job == nullptr) return false;
  if (passes) ++parked->passes;
  Start(std::move(job));
  return true;
}

bool EngineCore::ParkOne() {
  const std::optional<PromptClaim> waiting = queue_.FirstClaim();
  if (!waiting) return false;
  const std::optional<size_t> victim = ChooseVictim(loop_.Candidates(), *waiting, order_);
  if (!victim) return false;
  ParkRun(*victim);
  return true;
}

void EngineCore::ParkForPages() {
  if (SparePages() > 0) return;  // Somebody has given some back meanwhile.
  idle_turns_.DropPages();
  if (cache_ != nullptr) cache_->push().DropPending();
  if (SparePages() > 0) return;
  const std::optional<size_t> giver = ChooseGiver(loop_.Candidates(), order_);
  if (giver) ParkRun(*giver);
}

void EngineCore::ParkRun(size_t index) {
  std::unique_ptr<RequestRun> run = loop_.TakeOut(index);
  uint64_t held = 0;
  for (const Parked& one : parked_) held += one.run->kept_bytes();
  run->Park(held + run->parked_bytes() <= parts_.options.parking_bytes);
  {
    MutexLock lock(mu_);
    ++totals_.requests_parked;
  }
  std::erase_if(running_, [&](const Running& one) { return one.job == run->job(); });
  parked_.push_back({.run = std::move(run)});
}

void EngineCore::EndParked() {
  for (Parked& one : parked_) {
    const std::shared_ptr<Job> job = one.run->job();
    if (!job->cancelled() && !cancel_all_.load()) continue;
    one.run->Next(0, /*alone=*/false);  // Ends it: it computes nothing.
    running_.push_back({.job = job, .meter = UsageMeter(clock_.Now(), job->generated())});
    FinishRun(std::move(one.run));
  }
  std::erase_if(parked_, [](const Parked& one) { return one.run == nullptr; });
}

int64_t EngineCore::PagesFor(int64_t tokens) const {
  return (tokens + BlockTokens() - 1) / BlockTokens();
}

MeasuredRates EngineCore::Rates() const {
  MeasuredRates rates = parts_.scheduler->rates();
  // A request that runs alone is computed in steps of its own, which the scheduler does not see.
  double& speed = rates.prefill_tokens_per_second;
  if (speed <= 0) speed = services_.prompt_kv().prefill_tokens_per_second();
  if (rates.drain_tokens_per_second <= 0) rates.drain_tokens_per_second = speed;
  return rates;
}

void EngineCore::Charge(Running& one, int64_t pages) {
  const double tokens =
      one.meter.Read(clock_.Now(), one.job->generated(), pages, parts_.pool->total_pages(),
                     Rates().prefill_tokens_per_second);
  if (tokens > 0) parts_.accounts->Charge(one.job->claim().tenant, tokens);
}

void EngineCore::Account() {
  WorkerEngine::Load now;
  now.rates = Rates();
  std::vector<PromptClaim> prompts;
  for (Running& one : running_) {
    Charge(one, loop_.PagesOf(*one.job));
    one.pages = 0;  // Whoever ran has had a step.
  }
  for (const Scheduler::Candidate& one : loop_.Candidates()) {
    now.running_decodes += one.decoding ? 1 : 0;
    if (!one.decoding && !one.ending) prompts.push_back(one.claim);
  }
  now.running_prompts = prompts.size();
  now.parked = parked_.size();
  for (const Parked& one : parked_) now.parked_bytes += one.run->kept_bytes();
  now.near_bytes = loop_.near_bytes();
  queue_.SetRunning(std::move(prompts), now.rates.drain_tokens_per_second);
  MutexLock lock(mu_);
  load_ = std::move(now);
}

void EngineCore::FinishRun(std::unique_ptr<RequestRun> run) {
  const std::shared_ptr<Job> job = run->job();
  const auto running = std::ranges::find(running_, job, &Running::job);
  Charge(*running, run->held_pages());
  running_.erase(running);
  Result<GenerateSummary> outcome = run->TakeOutcome();
  std::shared_ptr<KvSequence> sequence = run->TakeSequence();
  run.reset();
  // A segment is selected once, where a request says that it ends: answers do not become one.
  if (outcome.ok() && job->request().keep_turn && job->request().score_tokens.empty() &&
      cache_ != nullptr && !services_.staged()) {
    idle_turns_.Keep(*job, *outcome, sequence);
  }
  // Pushes that wait hold the sequence, but read only pages that it computed. The next request does
  // not depend on how far they are: it finds these blocks in the cache, or computes them.
  sequence->DropLoans();
  sequence->Withdraw();
  sequence.reset();  // Before the caller hears of the end: its next request may need the pages.
  if (outcome.status().code() == StatusCode::kResourceExhausted) {
    MutexLock lock(mu_);
    ++totals_.pool_refusals;
  }
  // The match may have found more or less than was expected.
  if (outcome.ok()) {
    parts_.accounts->Charge(job->claim().tenant,
                            static_cast<double>(outcome->computed_tokens) -
                                static_cast<double>(job->claim().prefill_tokens));
  }
  FinishJob(*job, std::move(outcome));
}

void EngineCore::FinishJob(Job& job, Result<GenerateSummary> outcome) {
  if (outcome.ok() && outcome->finish_reason == "cancelled" && job.expired() &&
      !cancel_all_.load()) {
    outcome->finish_reason = "deadline";
  }
  {
    MutexLock lock(mu_);
    if (outcome.ok()) {
      ++totals_.requests;
      totals_.requests_cancelled += outcome->finish_reason == "cancelled" ? 1 : 0;
      totals_.requests_expired += outcome->finish_reason == "deadline" ? 1 : 0;
      totals_.prompt_tokens += outcome->prompt_tokens;
      totals_.fetched_tokens += outcome->fetched_tokens;
      totals_.computed_tokens += outcome->computed_tokens;
      totals_.shared_tokens += outcome->shared_tokens;
      totals_.chosen_tokens += outcome->chosen_tokens;
      totals_.generated_tokens += outcome->tokens.size();
      totals_.reading += outcome->reading.counters;
      totals_.far_tokens += outcome->reading.far_tokens;
    } else {
      ++totals_.requests_failed;
    }
  }
  admission_.Over(job);
  job.Finish(std::move(outcome));
}

Status EngineCore::ReserveKv(KvSequence& sequence, int64_t tokens) {
  Status status = sequence.Reserve(tokens);
  if (status.code() != StatusCode::kResourceExhausted) return status;
  idle_turns_.DropPages();
  status = sequence.Reserve(tokens);
  if (status.code() != StatusCode::kResourceExhausted || cache_ == nullptr) return status;
  cache_->push().DropPending();
  status = sequence.Reserve(tokens);
  if (status.code() != StatusCode::kResourceExhausted) return status;
  cache_->urgent_push().DropPending();
  return sequence.Reserve(tokens);
}

bool EngineCore::WaitIdle(Duration timeout) {
  const TimePoint deadline = clock_.Now() + timeout;
  do {
    if (!admission_.WaitNone(deadline) || !idle_turns_.WaitNone(deadline)) return false;
  } while (admission_.open() > 0);
  return cache_ == nullptr || cache_->WaitPushed(deadline);
}

void EngineCore::Close(TimePoint deadline) {
  queue_.Close();
  admission_.WaitNone(deadline);
  cancel_all_.store(true);
  queue_.CancelAll();
  wakeup_.Notify();
}

void EngineCore::Finish(TimePoint deadline) {
  idle_turns_.Clear();
  if (cache_ != nullptr) cache_->Stop(deadline);
}

}  // namespace cairn::worker
