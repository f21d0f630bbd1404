#include "services/worker/scheduling/prompt_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace cairn::worker {
namespace {

// A refused client that came back earlier would only ask again.
constexpr double kLeastRetrySeconds = 0.1;

}  // namespace

void PromptQueue::SetRunning(std::vector<PromptClaim> running, double tokens_per_second) {
  running_ = std::move(running);
  tokens_per_second_ = tokens_per_second;
}

PromptQueue::Outcome PromptQueue::Put(const Prompt& prompt, TimePoint now) {
  const double wait = ExpectedWait(prompt.claim, now);
  if (options_.tenant_capacity > 0) {
    const auto own = std::ranges::count_if(
        waiting_, [&](const auto& one) { return one.second.claim.tenant == prompt.claim.tenant; });
    if (static_cast<size_t>(own) >= options_.tenant_capacity) {
      return Refuse(Answer::kTenantFull, wait, 0);
    }
  }
  double limit = options_.max_wait_seconds > 0 ? options_.max_wait_seconds
                                               : std::numeric_limits<double>::infinity();
  if (prompt.deadline != TimePoint::max()) limit = std::min(limit, Seconds(prompt.deadline - now));
  if (wait > limit) return Refuse(Answer::kTooLong, wait, limit);
  Outcome outcome;
  outcome.wait_seconds = wait;
  if (waiting_.size() >= options_.capacity) {
    const auto surplus = Surplus(prompt, now);
    if (surplus == waiting_.end()) return Refuse(Answer::kFull, wait, 0);
    outcome.pushed_out = surplus->first;
    waiting_.erase(surplus);
  }
  waiting_.emplace(prompt.id, prompt);
  return outcome;
}

PromptQueue::Outcome PromptQueue::Refuse(Answer answer, double wait, double limit) const {
  Outcome outcome;
  outcome.answer = answer;
  outcome.wait_seconds = wait;
  // A full queue gives a place back when one more prompt has begun.
  const double full =
      wait / std::max<double>(1, static_cast<double>(waiting_.size() + running_.size()));
  outcome.retry_seconds =
      std::max(kLeastRetrySeconds, answer == Answer::kTooLong ? wait - limit : full);
  return outcome;
}

std::map<uint64_t, PromptQueue::Prompt>::const_iterator PromptQueue::Surplus(const Prompt& prompt,
                                                                             TimePoint now) const {
  // As in a fair queue (McKenney, "Stochastic Fairness Queueing", 1990): whoever holds most places
  // for its weight gives one.
  std::map<uint32_t, double> places;
  for (const auto& [id, one] : waiting_) {
    places[one.claim.tenant] += 1 / accounts_.StandingOf(one.claim.tenant).weight;
  }
  const double weight = accounts_.StandingOf(prompt.claim.tenant).weight;
  const double own = places[prompt.claim.tenant] + 1 / weight;
  const int32_t priority = CountedPriority(prompt.claim);
  auto last = waiting_.end();
  std::pair<double, PromptRank> worst;
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    const PromptClaim& claim = it->second.claim;
    const int32_t counted = CountedPriority(claim);
    const bool same = claim.tenant == prompt.claim.tenant;
    const bool gives =
        counted < priority || (same ? claim.priority < prompt.claim.priority
                                    : counted == priority && places[claim.tenant] > own);
    if (!gives) continue;
    // Lower priorities first, then the tenant with most places, then its last one.
    std::pair<double, PromptRank> rank{places[claim.tenant],
                                       order_.Rank(claim, tokens_per_second_, now)};
    rank.second.served = 0;
    const auto key = [](const std::pair<double, PromptRank>& r) {
      return std::tuple(r.second.priority, r.first, r.second);
    };
    if (last == waiting_.end() || key(rank) > key(worst)) {
      last = it;
      worst = rank;
    }
  }
  return last;
}

std::map<uint64_t, PromptQueue::Prompt>::const_iterator PromptQueue::FindFirst(
    TimePoint now) const {
  auto first = waiting_.end();
  PromptRank best;
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    const PromptRank rank = order_.Rank(it->second.claim, tokens_per_second_, now);
    if (first == waiting_.end() || rank < best) {
      first = it;
      best = rank;
    }
  }
  return first;
}

std::optional<PromptQueue::Prompt> PromptQueue::Take(
    TimePoint now, const std::function<bool(const Prompt&)>& fits) {
  const auto first = FindFirst(now);
  if (first == waiting_.end()) return std::nullopt;
  if (!fits || fits(first->second)) return waiting_.extract(first).mapped();
  std::vector<std::pair<PromptRank, uint64_t>> order;
  for (const auto& [id, prompt] : waiting_) {
    order.emplace_back(order_.Rank(prompt.claim, tokens_per_second_, now), id);
  }
  std::ranges::sort(order);
  for (size_t passed = 0; passed + 1 < order.size(); ++passed) {
    if (waiting_.at(order[passed].second).passes >= kMostPasses) return std::nullopt;
    const auto& [rank, id] = order[passed + 1];
    if (rank.priority != order.front().first.priority) return std::nullopt;
    if (!fits(waiting_.at(id))) continue;
    for (size_t i = 0; i <= passed; ++i) ++waiting_.at(order[i].second).passes;
    return waiting_.extract(id).mapped();
  }
  return std::nullopt;
}

std::optional<PromptQueue::Prompt> PromptQueue::First(TimePoint now) const {
  const auto first = FindFirst(now);
  return first == waiting_.end() ? std::nullopt : std::optional(first->second);
}

bool PromptQueue::Remove(uint64_t id) { return waiting_.erase(id) > 0; }

std::vector<PromptQueue::Prompt> PromptQueue::All() const {
  std::vector<Prompt> all;
  for (const auto& [id, prompt] : waiting_) all.push_back(prompt);
  return all;
}

int32_t PromptQueue::CountedPriority(const PromptClaim& claim) const {
  return std::min(claim.priority, accounts_.StandingOf(claim.tenant).max_priority);
}

double PromptQueue::ExpectedWait(const PromptClaim& claim, TimePoint now) const {
  if (tokens_per_second_ <= 0) return 0;
  const int32_t priority = CountedPriority(claim);
  const PromptRank rank = order_.Rank(claim, tokens_per_second_, now);
  double before = 0, own = 0;
  std::map<uint32_t, double> others;
  const auto add = [&](const PromptClaim& one) {
    const auto tokens = static_cast<double>(one.prefill_tokens);
    const int32_t counted = CountedPriority(one);
    if (one.tenant == claim.tenant) {
      // A long prompt that was accepted does not keep short ones out: they go before it.
      own += order_.Rank(one, tokens_per_second_, now) <= rank ? tokens : 0;
    } else if (counted > priority) {
      before += tokens;
    } else if (counted == priority) {
      others[one.tenant] += tokens;
    }
  };
  for (const auto& [id, prompt] : waiting_) add(prompt.claim);
  for (const PromptClaim& one : running_) add(one);
  // While this tenant gets what it has and this prompt, each other one gets its share at most
  // (generalised processor sharing).
  const double weight = accounts_.StandingOf(claim.tenant).weight;
  const double mine = own + static_cast<double>(claim.prefill_tokens);
  for (const auto& [tenant, tokens] : others) {
    before += std::min(tokens, mine * accounts_.StandingOf(tenant).weight / weight);
  }
  return (before + own) / tokens_per_second_;
}

double PromptQueue::BacklogSeconds() const {
  if (tokens_per_second_ <= 0) return 0;
  double tokens = 0;
  for (const auto& [id, prompt] : waiting_) {
    tokens += static_cast<double>(prompt.claim.prefill_tokens);
  }
  for (const PromptClaim& one : running_) tokens += static_cast<double>(one.prefill_tokens);
  return tokens / tokens_per_second_;
}

}  // namespace cairn::worker
