#include "services/router/policy/dispatcher.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace cairn::router {
namespace {

// The weight of a new answer in the mean of lengths.
constexpr double kNewAnswer = 0.01;
// The weight of a new measurement in the mean speed of fetches.
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

// With the speed that the worker would have with these tokens of the prompt.
PairingLoad LoadOf(const WorkerState& state, uint32_t position, uint32_t tokens, TimePoint now) {
  const double seconds = state.PrefillSeconds(position, tokens);
  return {.prefill_seconds = state.QueueSeconds(now),
          .prefill_tokens_per_second = seconds > 0 ? tokens / seconds : 0,
          .running_decodes = state.RunningDecodes(now)};
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
  std::vector<Usable> usable;
  uint32_t longest = 0;  // The most tokens that some worker's node holds.
  for (size_t i = 0; i < ask.offers.size(); ++i) {
    const Offer& offer = ask.offers[i];
    Candidate& candidate = decision.candidates.emplace_back();
    candidate.worker = offer.worker;
    candidate.usable = offer.usable;
    candidate.reason = offer.reason;
    const HeldTokens held = Within(offer.held, ask.prompt_tokens);
    longest = std::max(longest, Total(held));
    if (offer.usable) usable.push_back({i, &StateOf(offer.worker), held});
  }
  if (usable.empty()) return decision;
  std::vector<WorkerView> views;
  const auto view_of = [&](const Usable& one, const HeldTokens& held)
                           ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                             WorkerView view = ViewOf(ask, held, *one.state, now);
                             const uint32_t own = one.held.memory + one.held.disk;
                             view.copied_seconds = one.state->PrefillSeconds(own, longest - own);
                             return view;
                           };
  for (const Usable& one : usable) views.push_back(view_of(one, one.held));
  const Situation situation = {.workers = views,
                               .prompt_tokens = ask.prompt_tokens,
                               .arrivals_per_second = arrivals_.PerSecond(now),
                               .use = Use(now)};
  for (size_t i = 0; i < usable.size(); ++i) {
    Cost cost = CostOf(views[i], situation);
    // Blocks of another node are fetched only if that is cheaper than to compute them.
    if (usable[i].held.elsewhere > 0) {
      HeldTokens own = usable[i].held;
      own.elsewhere = 0;
      const WorkerView without = view_of(usable[i], own);
      const Cost less = CostOf(without, situation);
      if (less.seconds < cost.seconds) {
        views[i] = without;
        cost = less;
      }
    }
    Candidate& candidate = decision.candidates[usable[i].offer];
    candidate.held_tokens = views[i].held_tokens;
    candidate.queue_seconds = views[i].queue_seconds;
    candidate.fetch_seconds = views[i].fetch_seconds;
    candidate.work_seconds = views[i].work_seconds();
    candidate.delayed_requests = cost.delayed_requests;
    candidate.cost = cost.seconds;
  }
  Choose(ask, situation, usable, now, &decision);
  return decision;
}

TenantTerms Dispatcher::TermsOf(std::string_view tenant) const {
  const auto found = options_.tenants.find(std::string(tenant));
  return found == options_.tenants.end() ? TenantTerms() : found->second;
}

PendingPrompts::Claim Dispatcher::ClaimOf(const Ask& ask) const {
  const int32_t counted =
      ask.tenant.empty() ? ask.priority : std::min(ask.priority, TermsOf(ask.tenant).max_priority);
  return {.tenant = ask.tenant, .priority = ask.priority, .counted = counted};
}

double Dispatcher::WaitOf(const Ask& ask, const Situation& situation,
                          std::span<const Usable> usable, TimePoint now) const {
  const PendingPrompts::Claim claim = ClaimOf(ask);
  double least = std::numeric_limits<double>::infinity();
  for (const Usable& one : usable) {
    least = std::min(least, one.state->WaitSeconds(claim.counted, now));
  }
  // The owner of the load matters only if there is too much of it.
  if (options_.max_wait_seconds <= 0 || least <= options_.max_wait_seconds) return least;
  const auto weight = [this](std::string_view tenant) { return TermsOf(tenant).weight; };
  for (size_t i = 0; i < usable.size(); ++i) {
    const WorkerState& state = *usable[i].state;
    least = std::min(least, state.pending().ShareOf(state.WaitSeconds(claim.counted, now), claim,
                                                    situation.workers[i].prefill_seconds, weight));
  }
  return least;
}

void Dispatcher::Choose(const Ask& ask, const Situation& situation, std::span<const Usable> usable,
                        TimePoint now, Decision* decision) {
  const double wait = WaitOf(ask, situation, usable, now);
  decision->wait_seconds = wait;
  const double limit = options_.max_wait_seconds;
  if (ask.first_try && limit > 0 && wait > limit) {
    decision->kind = Decision::Kind::kShed;
    decision->retry_after = std::chrono::seconds(
        static_cast<int64_t>(std::ceil(std::clamp(wait - limit, 1.0, kLongestRetry))));
    ++shed_;
    return;
  }
  // A policy is code of ours, but one may come from a benchmark.
  const size_t picked = std::min(policy_->Pick(situation, random_), usable.size() - 1);
  CountPick(situation.workers, situation.workers[picked]);
  decision->kind = Decision::Kind::kPicked;
  decision->picked = usable[picked].offer;
  Send(ask, situation.workers[picked], usable[picked], now, decision);
}

void Dispatcher::Send(const Ask& ask, const WorkerView& view, Usable picked, TimePoint now,
                      Decision* decision) {
  const Offer& offer = ask.offers[picked.offer];
  double prefill_seconds = view.prefill_seconds;
  const auto helper = PrefillWorkerAt(ask, offer.site, now);
  if (helper && view.held_tokens < ask.prompt_tokens) {
    const uint32_t position = view.held_tokens;
    const uint32_t compute = ask.prompt_tokens - position;
    // The speed of fetches is the best known estimate of the way through the node.
    const PairingAnswer answer =
        pairing_.Decide({.compute_tokens = compute,
                         .block_tokens = offer.block_tokens,
                         .prefill = LoadOf(*helper->state, position, compute, now),
                         .decode = LoadOf(*picked.state, position, compute, now),
                         .link_tokens_per_second = picked.state->fetch_rates().memory});
    if (answer.apart) {
      const uint32_t handed = answer.handed_tokens;
      const double there = helper->state->PrefillSeconds(position, handed);
      decision->prefill = {.worker = helper->offer,
                           .ticket = 0,
                           .seconds = helper->state->QueueSeconds(now) + there,
                           .cached_tokens = position};
      decision->prefill->ticket = Count(ask, *helper, there, now);
      prefill_seconds = picked.state->PrefillSeconds(position + handed, compute - handed);
      picked.held.memory += handed;  // When it fetches them.
    }
  }
  decision->ticket = Count(ask, picked, prefill_seconds, now);
}

std::optional<Dispatcher::Usable> Dispatcher::PrefillWorkerAt(const Ask& ask, uint32_t site,
                                                              TimePoint now) {
  std::vector<Usable> workers;
  std::vector<double> queues;
  for (size_t i = 0; site != 0 && i < ask.offers.size(); ++i) {
    const Offer& offer = ask.offers[i];
    if (!offer.prefills || offer.site != site) continue;
    workers.push_back({i, &StateOf(offer.worker), {}});
    queues.push_back(workers.back().state->QueueSeconds(now));
  }
  if (workers.empty()) return std::nullopt;
  return workers[LeastAtRandom(queues, random_)];
}

uint64_t Dispatcher::Count(const Ask& ask, const Usable& worker, double prefill_seconds,
                           TimePoint now) {
  const PendingPrompts::Claim claim = ClaimOf(ask);
  worker.state->Sent(prefill_seconds, claim.counted, ask.followed, now);
  if (!ask.followed) return 0;
  const uint64_t ticket = next_ticket_++;
  worker.state->mutable_pending()->Add(claim, prefill_seconds);
  tickets_.emplace(ticket, Ticket{.worker = ask.offers[worker.offer].worker,
                                  .generation = worker.state->generation(),
                                  .held = worker.held,
                                  .claim = claim,
                                  .pending = true,
                                  .seconds = prefill_seconds});
  return ticket;
}

WorkerState* Dispatcher::WorkerOf(const Ticket& ticket) {
  const auto worker = workers_.find(ticket.worker);
  if (worker == workers_.end() || worker->second.generation() != ticket.generation) return nullptr;
  return &worker->second;
}

void Dispatcher::StopPending(Ticket* ticket) {
  if (!std::exchange(ticket->pending, false)) return;
  WorkerState* const worker = WorkerOf(*ticket);
  if (worker != nullptr) worker->mutable_pending()->Remove(ticket->claim, ticket->seconds);
}

void Dispatcher::OnComputed(uint64_t ticket) {
  MutexLock lock(mu_);
  const auto found = tickets_.find(ticket);
  if (found != tickets_.end()) StopPending(&found->second);
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
  Ticket done = std::move(found->second);
  tickets_.erase(found);
  StopPending(&done);
  if (end.complete) {
    answer_tokens_ += kNewAnswer * (static_cast<double>(end.generated_tokens) - answer_tokens_);
  }
  WorkerState* const worker = WorkerOf(done);
  if (worker == nullptr) return;
  worker->Ended(clock_->Now());
  if (end.complete) Measure(done.held, end, worker);
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
  // The mean is of seconds for each token: a slow fetch counts for as long as it takes.
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
