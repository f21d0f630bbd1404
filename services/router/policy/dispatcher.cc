#include "services/router/policy/dispatcher.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace cairn::router {
namespace {

// Of a new answer in the mean of lengths.
constexpr double kNewAnswer = 0.01;
// Of a new measurement in the mean speed of fetches.
constexpr double kNewFetch = 0.1;
// A longer wait says as much.
constexpr double kLongestRetry = 60;

// `held` with no more tokens than the prompt has.
HeldTokens Within(HeldTokens held, uint32_t prompt) {
  held.memory = std::min(held.memory, prompt);
  held.disk = std::min(held.disk, prompt - held.memory);
  held.elsewhere = std::min(held.elsewhere, prompt - held.memory - held.disk);
  return held;
}

uint32_t Total(const HeldTokens& held) { return held.memory + held.disk + held.elsewhere; }

double FetchSeconds(const HeldTokens& held, const WorkerState::FetchRates& rates) {
  return held.memory / rates.memory + held.disk / rates.disk + held.elsewhere / rates.elsewhere;
}

}  // namespace

Dispatcher::Dispatcher(const Options& options, std::unique_ptr<Policy> policy, const Clock* clock,
                       uint64_t seed)
    : options_(options),
      clock_(clock),
      policy_(std::move(policy)),
      policy_name_(policy_->name()),
      random_(seed),
      answer_tokens_(options.answer_tokens) {}

Dispatcher::~Dispatcher() = default;

WorkerState& Dispatcher::StateOf(std::string_view worker) {
  const auto found = workers_.find(worker);
  if (found != workers_.end()) return found->second;
  const WorkerState::Options options = {
      .stale_after = options_.stale_after,
      .report_delay = options_.report_delay,
      .prefill_tokens_per_second = options_.prefill_tokens_per_second};
  const WorkerState::FetchRates rates = {.memory = options_.memory_tokens_per_second,
                                         .disk = options_.disk_tokens_per_second,
                                         .elsewhere = options_.elsewhere_tokens_per_second};
  return workers_.emplace(std::string(worker), WorkerState(options, rates, next_generation_++))
      .first->second;
}

void Dispatcher::Report(std::string_view worker, const WorkerLoad& load) {
  MutexLock lock(mu_);
  StateOf(worker).Report(load, clock_->Now());
}

void Dispatcher::Remove(std::string_view worker) {
  MutexLock lock(mu_);
  const auto found = workers_.find(worker);
  if (found != workers_.end()) workers_.erase(found);
}

WorkerView Dispatcher::ViewOf(const Ask& ask, const HeldTokens& held, const WorkerState& state,
                              TimePoint now) const {
  const double answer = ask.max_tokens
                            ? std::min(answer_tokens_, static_cast<double>(*ask.max_tokens))
                            : answer_tokens_;
  const uint32_t tokens = Total(held);
  WorkerView view;
  view.queue_seconds = state.QueueSeconds(now);
  view.fetch_seconds = FetchSeconds(held, state.fetch_rates());
  // The last token is always computed.
  const uint32_t position = tokens < ask.prompt_tokens || tokens == 0 ? tokens : tokens - 1;
  view.prefill_seconds = state.PrefillSeconds(position, ask.prompt_tokens - position);
  view.decode_seconds = answer * state.decode_seconds();
  view.requests = state.Requests(now);
  view.held_tokens = tokens;
  view.first_in_first_out = state.first_in_first_out();
  return view;
}

double Dispatcher::Use(TimePoint now) const {
  double use = 0;
  for (const auto& [name, state] : workers_) use += state.Use(now);
  return workers_.empty() ? 0 : use / static_cast<double>(workers_.size());
}

Decision Dispatcher::Decide(const Ask& ask) {
  MutexLock lock(mu_);
  const TimePoint now = clock_->Now();
  if (ask.first_try) arrivals_.Arrived(now);
  Decision decision;
  std::vector<WorkerView> views;
  std::vector<size_t> usable;
  uint32_t longest = 0;  // That some worker's node holds.
  for (const Offer& offer : ask.offers) {
    longest = std::max(longest, Total(Within(offer.held, ask.prompt_tokens)));
  }
  for (size_t i = 0; i < ask.offers.size(); ++i) {
    const Offer& offer = ask.offers[i];
    Candidate& candidate = decision.candidates.emplace_back();
    candidate.worker = offer.worker;
    candidate.usable = offer.usable;
    candidate.reason = offer.reason;
    if (!offer.usable) continue;
    usable.push_back(i);
    const WorkerState& state = StateOf(offer.worker);
    const HeldTokens held = Within(offer.held, ask.prompt_tokens);
    views.push_back(ViewOf(ask, held, state, now));
    const uint32_t own = held.memory + held.disk;
    views.back().copied_seconds = state.PrefillSeconds(own, longest - own);
    candidate.held_tokens = views.back().held_tokens;
  }
  const Situation situation = {.workers = views,
                               .prompt_tokens = ask.prompt_tokens,
                               .arrivals_per_second = arrivals_.PerSecond(now),
                               .use = Use(now)};
  // What another node has is fetched only where that is cheaper than to compute it.
  for (size_t i = 0; i < usable.size(); ++i) {
    HeldTokens held = Within(ask.offers[usable[i]].held, ask.prompt_tokens);
    if (held.elsewhere == 0) continue;
    held.elsewhere = 0;
    WorkerView without = ViewOf(ask, held, StateOf(ask.offers[usable[i]].worker), now);
    without.copied_seconds = views[i].copied_seconds;
    if (CostOf(without, situation).seconds < CostOf(views[i], situation).seconds) {
      views[i] = without;
    }
  }
  for (size_t i = 0; i < usable.size(); ++i) {
    const Cost cost = CostOf(views[i], situation);
    Candidate& candidate = decision.candidates[usable[i]];
    candidate.held_tokens = views[i].held_tokens;
    candidate.queue_seconds = views[i].queue_seconds;
    candidate.fetch_seconds = views[i].fetch_seconds;
    candidate.work_seconds = views[i].work_seconds();
    candidate.delayed_requests = cost.delayed_requests;
    candidate.cost = cost.seconds;
  }
  if (!usable.empty()) Choose(ask, situation, usable, now, &decision);
  return decision;
}

void Dispatcher::Choose(const Ask& ask, const Situation& situation, std::span<const size_t> usable,
                        TimePoint now, Decision* decision) {
  std::vector<double> waits;
  for (const size_t offer : usable) {
    waits.push_back(StateOf(ask.offers[offer].worker).WaitSeconds(ask.priority, now));
  }
  decision->wait_seconds = *std::ranges::min_element(waits);
  const double limit = options_.max_wait_seconds;
  if (ask.first_try && limit > 0 && decision->wait_seconds > limit) {
    decision->kind = Decision::Kind::kShed;
    decision->retry_after = std::chrono::seconds(static_cast<int64_t>(
        std::ceil(std::clamp(decision->wait_seconds - limit, 1.0, kLongestRetry))));
    ++shed_;
    return;
  }
  // A policy is code of ours, but one may come from a benchmark.
  const size_t picked = std::min(policy_->Pick(situation, random_), usable.size() - 1);
  CountPick(situation.workers, situation.workers[picked]);
  decision->kind = Decision::Kind::kPicked;
  decision->picked = usable[picked];
  const Offer& offer = ask.offers[decision->picked];
  WorkerState& state = StateOf(offer.worker);
  state.Sent(situation.workers[picked].prefill_seconds, ask.priority, ask.followed, now);
  if (!ask.followed) return;
  decision->ticket = next_ticket_++;
  tickets_.emplace(decision->ticket,
                   Ticket{offer.worker, state.generation(), Within(offer.held, ask.prompt_tokens)});
}

void Dispatcher::CountPick(std::span<const WorkerView> workers, const WorkerView& picked) {
  const uint32_t most =
      std::ranges::max_element(workers, {}, &WorkerView::held_tokens)->held_tokens;
  if (most == 0) {
    ++picks_.held_nowhere;
  } else if (picked.held_tokens == most) {
    ++picks_.held_most;
  } else {
    ++picks_.held_less;
  }
}

void Dispatcher::OnEnd(uint64_t ticket, const RequestEnd& end) {
  MutexLock lock(mu_);
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return;
  const Ticket done = std::move(found->second);
  tickets_.erase(found);
  if (end.complete) {
    answer_tokens_ += kNewAnswer * (static_cast<double>(end.generated_tokens) - answer_tokens_);
  }
  const auto worker = workers_.find(done.worker);
  if (worker == workers_.end() || worker->second.generation() != done.generation) return;
  worker->second.Ended();
  if (end.complete) Measure(done.held, end, &worker->second);
}

// A fetch is charged to where most of its tokens were.
void Dispatcher::Measure(const HeldTokens& held, const RequestEnd& end, WorkerState* state) const {
  const double speed = end.fetched_tokens / end.fetch_seconds;
  // Fetches of a few blocks measure round trips.
  if (end.fetched_tokens < 256 || !std::isfinite(speed) || speed <= 0) return;
  WorkerState::FetchRates* const rates = state->mutable_fetch_rates();
  double* rate = &rates->memory;
  if (held.disk > held.memory) rate = &rates->disk;
  if (held.elsewhere > std::max(held.memory, held.disk)) rate = &rates->elsewhere;
  // Of seconds for each token: a slow one counts as much as it takes.
  *rate = 1 / ((1 - kNewFetch) / *rate + kNewFetch / std::clamp(speed, 1.0, 1e8));
}

Dispatcher::Numbers Dispatcher::numbers() const {
  MutexLock lock(mu_);
  const TimePoint now = clock_->Now();
  Numbers numbers;
  numbers.arrivals_per_second = arrivals_.PerSecond(now);
  numbers.use = Use(now);
  numbers.answer_tokens = answer_tokens_;
  numbers.shed = shed_;
  numbers.picks = picks_;
  for (const auto& [name, state] : workers_) {
    WorkerNumbers& one = numbers.workers.emplace_back();
    one.worker = name;
    one.queue_seconds = state.QueueSeconds(now);
    one.requests = state.Requests(now);
    one.reports = state.Fresh(now);
    if (state.reported_at()) one.report_age_seconds = Seconds(now - *state.reported_at());
    one.picks = state.picks();
    one.followed = state.followed();
  }
  return numbers;
}

}  // namespace cairn::router
