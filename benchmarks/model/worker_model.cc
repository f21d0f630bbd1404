#include "benchmarks/model/worker_model.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>

namespace cairn::simulated {
namespace {

TimePoint At(double seconds) {
  return TimePoint(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
}

}  // namespace

WorkerSpeeds WorkerSpeeds::Slower(double factor) const {
  WorkerSpeeds slower = *this;
  slower.step *= factor;
  slower.decode *= factor;
  slower.prefill_rate /= factor;
  slower.fetch_rate /= factor;
  return slower;
}

size_t LruBlocks::Match(std::span<const uint64_t> blocks) const {
  const auto missing =
      std::ranges::find_if(blocks, [&](uint64_t block) { return !where_.contains(block); });
  return static_cast<size_t>(missing - blocks.begin());
}

void LruBlocks::Use(std::span<const uint64_t> blocks) {
  // The first block of a prompt stays longest: without it the others cannot be matched.
  for (size_t i = blocks.size(); i-- > 0;) {
    const auto [found, is_new] = where_.try_emplace(blocks[i], order_.end());
    if (!is_new) order_.erase(found->second);
    order_.push_front(blocks[i]);
    found->second = order_.begin();
  }
  while (order_.size() > capacity_) {
    where_.erase(order_.back());
    order_.pop_back();
  }
}

WorkerModel::WorkerModel(const WorkerOptions& options, const std::vector<Request>& requests)
    : options_(options),
      requests_(requests),
      scheduler_({.max_running = options.max_running, .decode_share = options.decode_share},
                 accounts_),
      queue_(options.queue, accounts_),
      cache_(options.speeds.cache_tokens) {}

int64_t WorkerModel::CachedTokens(const Request& request) const {
  const auto tokens = static_cast<int64_t>(cache_.Match(request.blocks)) * kTraceBlock;
  return std::min(tokens, request.input_tokens - 1);  // The last token is always computed.
}

bool WorkerModel::Arrive(size_t index, double now, std::optional<size_t>* displaced) {
  const Request& request = requests_[index];
  worker::PromptQueue::Prompt prompt;
  prompt.id = index;
  prompt.claim.tenant = accounts_.Enter(request.tenant);
  prompt.claim.prefill_tokens = request.input_tokens - CachedTokens(request);
  prompt.claim.arrived = At(now);
  queue_.SetRunning(Prompts(), scheduler_.rates().drain_tokens_per_second);
  const auto outcome = queue_.Put(prompt, At(now));
  if (outcome.answer != worker::PromptQueue::Answer::kAccepted) {
    accounts_.Leave(prompt.claim.tenant);
    return false;
  }
  if (outcome.pushed_out) {
    *displaced = static_cast<size_t>(*outcome.pushed_out);
    const uint32_t tenant = accounts_.Enter(requests_[**displaced].tenant);  // To have its id.
    accounts_.Leave(tenant);
    accounts_.Leave(tenant);
  }
  if (!step_end_) BeginStep(now);
  return true;
}

void WorkerModel::Start(double now) {
  while (running_.size() < options_.max_running) {
    const auto prompt = queue_.Take(At(now));
    if (!prompt) return;
    const Request& request = requests_[prompt->id];
    const int64_t cached = CachedTokens(request);
    if (cached > 0) {
      cache_.Use(std::span(request.blocks)
                     .first(static_cast<size_t>(std::min<int64_t>(
                         std::ssize(request.blocks), (cached + kTraceBlock - 1) / kTraceBlock))));
    }
    Run run;
    run.request = prompt->id;
    run.id = next_id_++;
    run.claim = prompt->claim;
    run.claim.prefill_tokens = request.input_tokens - cached;
    run.position = cached;
    run.ready = now + static_cast<double>(cached) / options_.speeds.fetch_rate;
    accounts_.Charge(run.claim.tenant, static_cast<double>(run.claim.prefill_tokens));
    running_.push_back(run);
  }
}

worker::Scheduler::Candidate WorkerModel::CandidateOf(const Run& run) const {
  worker::Scheduler::Candidate candidate;
  candidate.id = run.id;
  candidate.decoding = run.generated > 0;
  candidate.position = run.position;
  candidate.claim = run.claim;
  candidate.claim.prefill_tokens = requests_[run.request].input_tokens - run.position;
  // Without a claim to be short, whoever came first goes first.
  if (candidate.decoding || options_.first_in_first_out) candidate.claim.prefill_tokens = 0;
  return candidate;
}

void WorkerModel::BeginStep(double now) {
  Start(now);
  step_end_.reset();
  pass_ = {};
  step_seconds_ = 0;
  // Those whose fetch is under way get no rows, as in the engine.
  std::vector<worker::Scheduler::Candidate> candidates;
  std::vector<size_t> who;
  double wake = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < running_.size(); ++i) {
    running_[i].rows = 0;
    if (running_[i].ready > now) {
      wake = std::min(wake, running_[i].ready);
      continue;
    }
    candidates.push_back(CandidateOf(running_[i]));
    who.push_back(i);
  }
  if (candidates.empty()) {
    if (!running_.empty()) step_end_ = wake;
    return;
  }
  const worker::StepPlan plan = scheduler_.Next(candidates, At(now));
  const WorkerSpeeds& speeds = options_.speeds;
  double positions = 0;
  for (const size_t index : plan.order) {
    Run& run = running_[who[index]];
    if (run.generated > 0) {
      run.rows = 1;
      ++pass_.decodes;
      step_seconds_ += speeds.DecodeSeconds(run.position + run.generated);
      continue;
    }
    const int64_t left = requests_[run.request].input_tokens - run.position;
    int64_t rows = std::min(plan.prefill_tokens, speeds.step_tokens) - pass_.prefill_tokens;
    rows = rows >= left ? left : rows / 64 * 64;
    if (rows <= 0) continue;
    run.rows = rows;
    pass_.prefill_tokens += rows;
    positions += static_cast<double>(rows) *
                 (static_cast<double>(run.position) + static_cast<double>(rows) / 2);
    step_seconds_ += speeds.PrefillSeconds(run.position, rows);
  }
  if (pass_.prefill_tokens > 0) {
    pass_.prefill_position =
        static_cast<int64_t>(positions / static_cast<double>(pass_.prefill_tokens));
  }
  step_seconds_ += speeds.step;
  step_end_ = now + step_seconds_;
}

void WorkerModel::EndStep(double now, std::vector<Answered>* done,
                          std::vector<Generated>* generated) {
  if (step_seconds_ == 0) return;
  scheduler_.Computed(pass_, step_seconds_);
  busy_seconds_ += step_seconds_;
  for (Run& run : running_) {
    if (run.rows == 0) continue;
    const Request& request = requests_[run.request];
    if (run.generated == 0) {
      run.position += run.rows;
      if (run.position < request.input_tokens) continue;
      run.first_token = now;
      cache_.Use(request.blocks);
    }
    ++run.generated;
    if (generated != nullptr) generated->push_back({run.request, run.generated});
    accounts_.Charge(run.claim.tenant, TenantAccounts::kGeneratedCost);
    if (run.generated < request.output_tokens) continue;
    done->push_back({run.request, run.first_token, now});
    accounts_.Leave(run.claim.tenant);
    run.generated = -1;
  }
  std::erase_if(running_, [](const Run& run) { return run.generated < 0; });
}

void WorkerModel::Step(double now, std::vector<Answered>* done, std::vector<Generated>* generated) {
  EndStep(now, done, generated);
  BeginStep(now);
}

std::vector<worker::PromptClaim> WorkerModel::Prompts() const {
  std::vector<worker::PromptClaim> prompts;
  for (const Run& run : running_) {
    if (run.generated > 0) continue;
    prompts.push_back(run.claim);
    prompts.back().prefill_tokens = requests_[run.request].input_tokens - run.position;
  }
  return prompts;
}

router::WorkerLoad WorkerModel::Report() const {
  router::WorkerLoad report;
  double tokens = 0;
  for (const worker::PromptClaim& claim : Prompts()) {
    tokens += static_cast<double>(claim.prefill_tokens);
    ++report.running_prompts;
  }
  std::map<int32_t, router::WorkerLoad::Queued, std::greater<>> queued;
  for (const auto& prompt : queue_.All()) {
    tokens += static_cast<double>(prompt.claim.prefill_tokens);
    router::WorkerLoad::Queued& one = queued[prompt.claim.priority];
    one.priority = prompt.claim.priority;
    ++one.requests;
    one.prefill_tokens += static_cast<uint64_t>(prompt.claim.prefill_tokens);
  }
  for (const auto& [priority, one] : queued) report.queued.push_back(one);
  const worker::MeasuredRates rates = scheduler_.rates();
  const double drain = rates.drain_tokens_per_second;
  report.prefill_seconds = tokens / (drain > 0 ? drain : options_.speeds.prefill_rate);
  report.running_decodes = static_cast<uint32_t>(
      std::ranges::count_if(running_, [](const Run& run) { return run.generated > 0; }));
  report.prefill_tokens_per_second = rates.prefill_tokens_per_second;
  report.pair_seconds = rates.pair_seconds;
  report.drain_tokens_per_second = drain;
  report.step_seconds = rates.step_seconds;
  report.decode_seconds = rates.decode_seconds;
  report.first_in_first_out = options_.first_in_first_out;
  return report;
}

WorkerFacts WorkerModel::Facts() const {
  WorkerFacts facts;
  int64_t running_tokens = 0;
  for (const Run& run : running_) {
    const Request& request = requests_[run.request];
    if (run.generated == 0) {
      facts.prefill_tokens += request.input_tokens - run.position;
      const bool begun =
          run.rows > 0 || run.position + run.claim.prefill_tokens > request.input_tokens;
      if (!begun) ++facts.not_begun;
    }
    running_tokens += request.input_tokens + run.generated;
    facts.resident_tokens += request.input_tokens + run.generated;
  }
  for (const auto& prompt : queue_.All()) {
    ++facts.waiting;
    ++facts.not_begun;
    facts.prefill_tokens += prompt.claim.prefill_tokens;
    facts.resident_tokens += requests_[prompt.id].input_tokens;
  }
  facts.requests = facts.waiting + std::ssize(running_);
  facts.kv_use = std::min(
      1.0, static_cast<double>(running_tokens) / static_cast<double>(options_.speeds.cache_tokens));
  return facts;
}

}  // namespace cairn::simulated
