#include "services/worker/engine/engine_core.h"

#include <algorithm>
#include <utility>

#include "common/log/log.h"
#include "services/worker/engine/prompt.h"
#include "services/worker/scheduling/preemption.h"

namespace cairn::worker {
namespace {

// Of what the node is asked for a request that waits: long enough for one nearby. Without an
// answer, all of the prompt counts.
constexpr std::chrono::milliseconds kQueueCallDeadline{10};
// How long after the last push a finished turn may begin.
constexpr std::chrono::milliseconds kLookAtPushes{5};
// The longest time ahead that a node takes hints for (CacheClient::Prefetch).
constexpr double kMostAheadSeconds = 300;

}  // namespace

EngineCore::EngineCore(EngineParts parts, Executor* executor)
    : parts_(std::move(parts)),
      clock_(*parts_.clock),
      order_(*parts_.accounts),
      queue_({.capacity = parts_.options.queue_capacity,
              .tenant_capacity = parts_.options.tenant_queue_capacity,
              .max_wait_seconds = Seconds(parts_.options.queue_max_wait)},
             *parts_.accounts, parts_.options.tenant, clock_) {
  if (parts_.cache != nullptr) ConnectCache(*executor);
  PrefixSession* const session = session_ ? &*session_ : nullptr;
  prompt_kv_.emplace(*parts_.transformer, clock_, session, push_queue(), parts_.published,
                     selection_publisher_ ? &*selection_publisher_ : nullptr, urgent_push_queue());
  if (parts_.selection != nullptr) {
    selected_prompt_.emplace(*parts_.transformer, *parts_.model, *parts_.pool, clock_,
                             *parts_.selection, session, push_queue());
  }
  const std::string no_spill = WhyNoSpill();
  if (no_spill.empty()) {
    spill_.emplace(SpillServices{.client = *parts_.cache,
                                 .session = *session_,
                                 .executor = *executor,
                                 .push = *spill_push_,
                                 .background = &*push_,
                                 .options = parts_.options.spill,
                                 .read_by_rows = parts_.reading.has_value()});
  }
  if (session_ && !selected_prompt_ && parts_.codec->raw()) {
    turn_.emplace(TurnServices{.client = *parts_.cache,
                               .session = *session_,
                               .codec = *parts_.codec,
                               .push = *spill_push_,
                               .kernels = *kernels::BestCpuBackend().selections,
                               .kv = parts_.pool->layout(),
                               .rope_dim = parts_.model->hp().rope_dim,
                               .rope_base = parts_.model->hp().rope_base,
                               .match_deadline = parts_.options.spill.match_deadline});
  }
  request_parts_.emplace(RequestParts{
      .model = *parts_.model,
      .transformer = *parts_.transformer,
      .pool = *parts_.pool,
      .pool_bytes = parts_.options.kv_pool_bytes,
      .clock = clock_,
      .prompt_kv = *prompt_kv_,
      .selected_prompt = selected_prompt_ ? &*selected_prompt_ : nullptr,
      .reading = parts_.reading ? &*parts_.reading : nullptr,
      .turn = turn_ ? &*turn_ : nullptr,
      .spill = spill_ ? &*spill_ : nullptr,
      .no_spill = no_spill,
      .cancel_all = cancel_all_,
      .spilled =
          [this](const SpillStats& stats) {
            MutexLock lock(mu_);
            totals_.spill += stats;
          },
      .reserve = [this](KvSequence& sequence,
                        int64_t tokens) { return ReserveKv(sequence, tokens); },
      .make_room =
          [this] {
            if (push_) push_->DropPending();
          },
      .company = [this] { return loop_->HasRoom() && queue_.size() > 0; },
  });
  loop_.emplace(*request_parts_, *parts_.scheduler);
}

void EngineCore::ConnectCache(Executor& executor) {
  client::CacheClient& cache = *parts_.cache;
  PageEncoder* const encoder = parts_.transformer->page_encoder();
  push_.emplace(cache, parts_.ns->spec.layout, clock_, parts_.options.push, encoder);
  PushQueue::Options urgent = parts_.options.push;
  urgent.niceness = 0;
  urgent_push_.emplace(cache, parts_.ns->spec.layout, clock_, urgent, encoder);
  // One at a time: the client's buffers for a batch are memory beside the pool.
  urgent.batch_blocks = 1;
  spill_push_.emplace(cache, parts_.ns->spec.layout, clock_, urgent);
  session_.emplace(PrefixSession::Dependencies{.client = cache,
                                               .codec = *parts_.codec,
                                               .clock = clock_,
                                               .executor = executor,
                                               .loader = parts_.transformer->slice_loader()},
                   *parts_.ns, parts_.pool->layout(), parts_.options.prefix);
  OpenPublished();
  if (std::ranges::any_of(parts_.published, [](const PublishedNamespace& target) {
        return target.selection != nullptr;
      })) {
    selection_publisher_.emplace(*parts_.transformer, *parts_.model, *push_, parts_.published);
  }
}

void EngineCore::OpenPublished() {
  for (const PublishedNamespace& target : parts_.published) {
    const bool away = !parts_.cache->GetStats().connected;
    const Duration deadline = away ? Duration(std::chrono::milliseconds(1))
                                   : Duration(parts_.options.prefix.connect_deadline);
    const Status opened =
        parts_.cache->OpenNamespace(target.ns.spec, {.deadline = deadline, .trace = {}}).status();
    if (!opened.ok()) {
      log::Warn("cache_namespace_not_open",
                {{"recipe", target.ns.spec.recipe}, {"error", ToString(opened)}});
    }
  }
}

Result<GenerateSummary> EngineCore::Generate(const GenerateRequest& request,
                                             const GenerateCallbacks& callbacks) {
  CAIRN_ASSIGN_OR_RETURN(const std::shared_ptr<Job> job, Submit(request));
  return job->Consume(callbacks);
}

Result<std::shared_ptr<Job>> EngineCore::Submit(const GenerateRequest& request) {
  CAIRN_ASSIGN_OR_RETURN(PreparedPrompt prompt,
                         PreparePrompt(*parts_.model, context(), BlockTokens(), request));
  if (request.deadline && *request.deadline <= clock_.Now()) {
    return InvalidArgument(
        "field 'deadline': got a time {:.3f} s in the past, expected one to come",
        Seconds(clock_.Now() - *request.deadline));
  }
  CAIRN_RETURN_IF_ERROR(CheckRole(request));
  auto job = std::make_shared<Job>(request, std::move(prompt), clock_);
  CAIRN_RETURN_IF_ERROR(CheckBudget(*job));
  bool busy = false;
  {
    MutexLock lock(mu_);
    busy = open_requests_ >= parts_.scheduler->max_running();
    ++open_requests_;
  }
  // A request that gets a place is matched at once.
  Cached cached;
  if (busy) {
    cached = FindCached(*job);
    job->ExpectPrefill(std::ssize(job->prompt().tokens) -
                       std::ssize(cached.keys) * int64_t{BlockTokens()});
  }
  // What another worker computes is not computed here.
  if (request.await_prefill > Duration(0)) {
    job->ExpectPrefill(std::min<int64_t>(job->claim().prefill_tokens, BlockTokens()));
  }
  std::shared_ptr<Job> displaced;
  Status status = queue_.Put(job, &displaced);
  if (status.code() == StatusCode::kResourceExhausted) {
    for (const auto& ended : queue_.TakeEnded()) {
      FinishJob(*ended, EndedSummary(*ended, clock_.Now()));
    }
    status = queue_.Put(job, &displaced);
  }
  if (displaced != nullptr) {
    FinishJob(*displaced, Status(StatusCode::kResourceExhausted,
                                 "request queue: full, and requests of a tenant with fewer of them "
                                 "or of a greater priority have come; try again later"));
  }
  if (!status.ok()) {
    MutexLock lock(mu_);
    --open_requests_;
    ++totals_.requests_refused;
    changed_.NotifyAll();
    return status;
  }
  if (cached.below_memory > 0) LookAhead(*job, cached);
  return job;
}

Status EngineCore::CheckRole(const GenerateRequest& request) const {
  const auto refuse = [](std::string_view why) {
    return Errorf(StatusCode::kFailedPrecondition, "field 'prefill_only': {}", why);
  };
  const WorkerRole role = parts_.options.role;
  if (!request.prefill_only) {
    if (role == WorkerRole::kPrefill) {
      return refuse("got false, but this worker has the role 'prefill'");
    }
    return OkStatus();
  }
  if (role == WorkerRole::kDecode) return refuse("got true, but this worker has the role 'decode'");
  if (!session_) return refuse("got true, but this worker has no cache node to push to");
  if (selected_prompt_) return refuse("got true, but this worker's recipe selects tokens");
  return OkStatus();
}

Status EngineCore::CheckBudget(const Job& job) const {
  const int64_t block = BlockTokens();
  const int64_t tokens = std::ssize(job.prompt().tokens);
  const bool spills = job.TokensNeeded() > parts_.pool->total_pages() * block;
  const int64_t rows = spills ? SpilledPrompt::RowsAtNode(tokens) : tokens / block * block;
  if (!parts_.reading || rows == 0 || job.request().prefill_only) return OkStatus();
  const KvLayout& kv = parts_.pool->layout();
  const int64_t own_pages = (job.TokensNeeded() - rows + block - 1) / block;
  return ShareBudget(parts_.reading->policy, kv, rows,
                     static_cast<uint64_t>(own_pages) * kv.page_bytes(), parts_.reading->budget)
      .status();
}

std::string EngineCore::WhyNoSpill() const {
  if (!session_) return "this worker has no cache node";
  if (selected_prompt_) return "this worker's recipe selects tokens";
  if (parts_.codec->lossy() || !parts_.codec->raw()) {
    return fmt::format("this worker's recipe '{}' is not raw", parts_.options.recipe);
  }
  if (EarlierKv::kUnitTokens % BlockTokens() != 0) {
    return fmt::format("its blocks have {} tokens, expected a divisor of {}", BlockTokens(),
                       EarlierKv::kUnitTokens);
  }
  return "";
}

EngineCore::Cached EngineCore::FindCached(const Job& job) {
  Cached cached;
  if (!session_ || job.request().no_cache) return cached;
  const auto& tokens = job.prompt().tokens;
  cached.keys = session_->Keys(std::span<const TokenId>(tokens).first(tokens.size() - 1));
  if (cached.keys.empty()) return cached;
  const auto found =
      parts_.cache->Exists(session_->fingerprint(), cached.keys,
                           {.deadline = kQueueCallDeadline, .trace = job.request().trace});
  size_t matched = 0;
  while (found.ok() && matched < found->size() && (*found)[matched].has_value()) {
    cached.below_memory += Faster(TierKind::kHost, *(*found)[matched]) ? 1 : 0;
    ++matched;
  }
  cached.keys.resize(matched);
  return cached;
}

void EngineCore::LookAhead(const Job& job, const Cached& cached) {
  const auto wait = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::min(job.expected_wait(), kMostAheadSeconds)));
  const auto asked =
      parts_.cache->Prefetch(session_->fingerprint(), cached.keys, wait,
                             {.deadline = kQueueCallDeadline, .trace = job.request().trace});
  if (!asked.ok()) return;
  MutexLock lock(mu_);
  totals_.lookahead_blocks += asked->queued_blocks;
}

void EngineCore::Run() {
  while (true) {
    switch (Step()) {
      case Progress::kWorked:
        break;
      case Progress::kWaiting:
        if (loop_->empty()) {
          queue_.WaitForJob(clock_.Now() + kLookAtPushes);
        } else {
          loop_->WaitBriefly();
        }
        break;
      case Progress::kIdle:
        queue_.WaitForJob();
        break;
      case Progress::kFinished:
        return;
    }
  }
}

EngineCore::Progress EngineCore::Step() {
  StartJobs();
  if (!loop_->empty()) {
    RunLoop::Round round = loop_->Step();
    for (auto& run : round.finished) FinishRun(std::move(run));
    return round.progressed ? Progress::kWorked : Progress::kWaiting;
  }
  if (queue_.closed()) return queue_.size() == 0 ? Progress::kFinished : Progress::kWorked;
  return RunIdleTurn();
}

void EngineCore::StartJobs() {
  for (const auto& ended : queue_.TakeEnded()) {
    FinishJob(*ended, EndedSummary(*ended, clock_.Now()));
  }
  EndParked();
  Account();
  while (StartOne() || ParkOne()) {
  }
}

bool EngineCore::StartOne() {
  if (!loop_->HasRoom()) return false;
  // Those that have begun in this step have not taken their pages yet.
  int64_t pages = parts_.pool->free_pages();
  for (const Running& one : running_) pages -= one.reserved ? 0 : PagesFor(*one.job);
  // A request that runs keeps its pages to its end. One for which there are none yet waits in front
  // of the queue. A request that is alone gets whatever the engine can spare.
  const auto fits = [&](const Job& job) { return running_.empty() || PagesFor(job) <= pages; };
  const auto parked = std::ranges::max_element(parked_, {}, [&](const auto& run) {
    return -order_.Rank(run->job()->claim(), 0, clock_.Now()).priority;
  });
  if (parked != parked_.end()) {
    const std::optional<PromptClaim> first = queue_.FirstClaim();
    const int32_t priority = order_.Rank((*parked)->job()->claim(), 0, clock_.Now()).priority;
    // Negated: smaller is more urgent.
    if (!first || order_.Rank(*first, 0, clock_.Now()).priority >= priority) {
      if (!fits(*(*parked)->job())) return false;
      running_.push_back(
          {.job = (*parked)->job(), .charged_tokens = (*parked)->job()->generated()});
      loop_->Add(std::move(*parked));
      parked_.erase(parked);
      return true;
    }
  }
  const std::shared_ptr<Job> job = queue_.Take(fits);
  if (job == nullptr) return false;
  running_.push_back({.job = job});
  loop_->Add(job);
  return true;
}

bool EngineCore::ParkOne() {
  const std::optional<PromptClaim> waiting = queue_.FirstClaim();
  if (!waiting) return false;
  const std::optional<size_t> victim = ChooseVictim(loop_->Candidates(), *waiting, order_);
  if (!victim) return false;
  std::unique_ptr<RequestRun> run = loop_->TakeOut(*victim);
  uint64_t held = 0;
  for (const auto& one : parked_) held += one->kept_bytes();
  run->Park(held + run->parked_bytes() <= parts_.options.parking_bytes);
  {
    MutexLock lock(mu_);
    ++totals_.requests_parked;
  }
  std::erase_if(running_, [&](const Running& one) { return one.job == run->job(); });
  parked_.push_back(std::move(run));
  return true;
}

void EngineCore::EndParked() {
  for (auto& run : parked_) {
    if (!run->job()->cancelled() && !cancel_all_.load()) continue;
    run->Next(0, /*alone=*/false);  // Ends it: it computes nothing.
    const auto job = run->job();
    running_.push_back({.job = job, .charged_tokens = job->generated()});
    FinishRun(std::move(run));
  }
  std::erase(parked_, nullptr);
}

int64_t EngineCore::PagesFor(const Job& job) const {
  return (job.TokensNeeded() + BlockTokens() - 1) / BlockTokens();
}

void EngineCore::ChargeGenerated(Running& one) {
  const uint64_t generated = one.job->generated();
  const uint64_t more = generated - std::exchange(one.charged_tokens, generated);
  if (more == 0) return;
  parts_.accounts->Charge(one.job->claim().tenant,
                          TenantAccounts::kGeneratedCost * static_cast<double>(more));
}

void EngineCore::Account() {
  WorkerEngine::Load now;
  now.rates = parts_.scheduler->rates();
  // What runs alone is computed in steps of its own, which the scheduler does not see.
  double& speed = now.rates.prefill_tokens_per_second;
  if (speed <= 0) speed = prompt_kv_->prefill_tokens_per_second();
  double& drain = now.rates.drain_tokens_per_second;
  if (drain <= 0) drain = speed;
  std::vector<PromptClaim> prompts;
  for (Running& one : running_) {
    ChargeGenerated(one);
    one.reserved = true;  // Whoever ran has had a step.
  }
  for (const Scheduler::Candidate& one : loop_->Candidates()) {
    now.running_decodes += one.decoding ? 1 : 0;
    if (!one.decoding && !one.ending) prompts.push_back(one.claim);
  }
  now.running_prompts = prompts.size();
  now.parked = parked_.size();
  for (const auto& run : parked_) now.parked_bytes += run->kept_bytes();
  now.near_bytes = loop_->near_bytes();
  queue_.SetRunning(std::move(prompts), drain);
  MutexLock lock(mu_);
  load_ = std::move(now);
}

void EngineCore::FinishRun(std::unique_ptr<RequestRun> run) {
  const std::shared_ptr<Job> job = run->job();
  Result<GenerateSummary> outcome = run->TakeOutcome();
  std::shared_ptr<KvSequence> sequence = run->TakeSequence();
  run.reset();
  if (outcome.ok() && job->request().keep_turn && job->request().score_tokens.empty())
    Keep(*job, *outcome, sequence);
  // Pushes that wait hold the sequence, but read only pages that it computed. The next request does
  // not depend on how far they are: it finds these blocks in the cache, or computes them.
  sequence->DropLoans();
  sequence->Withdraw();
  sequence.reset();  // Before the caller hears of the end: its next request may need the pages.
  // The match may have found more or less than was expected.
  if (outcome.ok()) {
    parts_.accounts->Charge(job->claim().tenant,
                            static_cast<double>(outcome->computed_tokens) -
                                static_cast<double>(job->claim().prefill_tokens));
  }
  const auto running = std::ranges::find(running_, job, &Running::job);
  ChargeGenerated(*running);
  running_.erase(running);
  FinishJob(*job, std::move(outcome));
}

void EngineCore::FinishJob(Job& job, Result<GenerateSummary> outcome) {
  if (outcome.ok() && outcome->finish_reason == "cancelled" && job.expired() &&
      !cancel_all_.load()) {
    outcome->finish_reason = "deadline";
  }
  queue_.Over(job);
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
    --open_requests_;
    changed_.NotifyAll();
  }
  job.Finish(std::move(outcome));
}

void EngineCore::Keep(const Job& job, const GenerateSummary& summary,
                      std::shared_ptr<KvSequence> sequence) {
  // A segment is selected once, where a request says that it ends: answers do not become one.
  if (selected_prompt_) return;
  // A turn whose prompt did not fit does not fit either.
  if (job.TokensNeeded() > parts_.pool->total_pages() * int64_t{BlockTokens()}) return;
  // Neither does one of which tokens were dropped.
  if (job.prompt().dropped > 0) return;
  if (!session_ || job.request().no_cache || job.request().prefill_only ||
      summary.finish_reason == "cancelled") {
    return;
  }
  const std::vector<TokenId>& prompt = job.prompt().tokens;
  IdleTurn turn;
  turn.tokens = FinishedTurn(*parts_.model, context(), job.request(), job.prompt(), summary);
  turn.trace = job.request().trace;
  const auto block_tokens = static_cast<size_t>(BlockTokens());
  turn.tokens.resize(turn.tokens.size() / block_tokens * block_tokens);
  const auto same = static_cast<size_t>(
      std::mismatch(prompt.begin(), prompt.end(), turn.tokens.begin(), turn.tokens.end()).first -
      prompt.begin());
  const size_t exact = same / block_tokens * block_tokens;
  if (turn.tokens.size() <= exact) return;  // The request itself has pushed all of it.
  // What decode steps wrote is not of exact lineage: it is computed again. A turn that departs from
  // the prompt before its last full block starts on pages of its own: the prompt's may still be
  // read by a push.
  // And so may a turn whose prompt was fetched in a lossy form: what is computed over it has keys
  // that begin with a fetch.
  // Of a prompt that was read by rows the pages are gone.
  if (exact == prompt.size() / block_tokens * block_tokens && !parts_.codec->lossy() &&
      sequence->base() == 0) {
    sequence->Truncate(static_cast<int64_t>(exact));
    // It may wait for long: the node gets its memory back.
    if (sequence->CopyOut()) turn.sequence = std::move(sequence);
  }

  MutexLock lock(mu_);
  if (idle_.size() >= parts_.options.idle_turns) {
    if (!idle_.empty()) idle_.pop_front();
    ++totals_.idle_turns_dropped;
  }
  if (parts_.options.idle_turns > 0) idle_.push_back(std::move(turn));
}

EngineCore::Progress EngineCore::RunIdleTurn() {
  const bool pushing = Pushing();
  IdleTurn turn;
  {
    MutexLock lock(mu_);
    if (idle_.empty()) return Progress::kIdle;
    // A turn without pages fetches what its request has pushed. Before that is at the node it would
    // compute the whole prompt once more.
    if (idle_.front().sequence == nullptr && pushing) return Progress::kWaiting;
    turn = std::move(idle_.front());
    idle_.pop_front();
    idle_running_ = true;
  }
  PrefillIdleTurn(std::move(turn));
  return Progress::kWorked;
}

bool EngineCore::Pushing() const {
  return push_ && push_->GetStats().queued_blocks + urgent_push_->GetStats().queued_blocks > 0;
}

void EngineCore::PrefillIdleTurn(IdleTurn turn) {
  if (turn.sequence == nullptr) {
    turn.sequence = std::make_shared<KvSequence>(parts_.pool->NewSequence());
  }
  Status status = turn.sequence->Reserve(static_cast<int64_t>(turn.tokens.size()));
  PromptKv::Report report;
  if (status.ok()) {
    PromptKv::Request wanted;
    wanted.tokens = turn.tokens;
    wanted.sequence = turn.sequence;
    wanted.use_cache = true;
    wanted.background = true;
    wanted.trace = turn.trace;
    wanted.stop = [this] { return queue_.size() > 0 || queue_.closed(); };
    report = prompt_kv_->Compute(wanted);
    status = report.status;
  }
  MutexLock lock(mu_);
  idle_running_ = false;
  totals_.idle_prefilled_tokens += report.computed_tokens;
  if (status.code() == StatusCode::kCancelled && !queue_.closed()) {
    // A request has come. What is computed is on its way to the cache and need not hold pages.
    turn.sequence = nullptr;
    idle_.push_front(std::move(turn));
  } else if (!status.ok()) {
    ++totals_.idle_turns_dropped;
  }
  changed_.NotifyAll();
}

Status EngineCore::ReserveKv(KvSequence& sequence, int64_t tokens) {
  Status status = sequence.Reserve(tokens);
  if (status.code() != StatusCode::kResourceExhausted) return status;
  {
    MutexLock lock(mu_);
    for (IdleTurn& turn : idle_) turn.sequence = nullptr;
  }
  status = sequence.Reserve(tokens);
  if (status.code() != StatusCode::kResourceExhausted || !push_) return status;
  push_->DropPending();
  status = sequence.Reserve(tokens);
  if (status.code() != StatusCode::kResourceExhausted) return status;
  urgent_push_->DropPending();
  return sequence.Reserve(tokens);
}

bool EngineCore::WaitIdle(Duration timeout) {
  const TimePoint deadline = clock_.Now() + timeout;
  {
    MutexLock lock(mu_);
    if (!changed_.WaitUntil(mu_, clock_, deadline, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
          return open_requests_ == 0 && idle_.empty() && !idle_running_;
        })) {
      return false;
    }
  }
  return !push_ || (push_->WaitEmpty(deadline) && urgent_push_->WaitEmpty(deadline));
}

void EngineCore::Close(TimePoint deadline) {
  queue_.Close();
  {
    MutexLock lock(mu_);
    changed_.WaitUntil(mu_, clock_, deadline,
                       [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return open_requests_ == 0; });
  }
  cancel_all_.store(true);
  queue_.CancelAll();
}

void EngineCore::Finish(TimePoint deadline) {
  {
    MutexLock lock(mu_);
    idle_.clear();
    changed_.NotifyAll();
  }
  if (!push_) return;
  spill_push_->Stop(deadline);
  urgent_push_->Stop(deadline);
  push_->Stop(deadline);
}

}  // namespace cairn::worker
