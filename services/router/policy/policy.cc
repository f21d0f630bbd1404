#include "services/router/policy/policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace cairn::router {
namespace {

// Beyond these the queueing formula says nothing.
constexpr double kMostUse = 0.97;
constexpr double kMostDelayed = 50;
// The cost of a second copy in a full store, over the prefill of its tokens: the chance that a
// block which left for it would have been used.
constexpr double kPlace = 0.5;
// The part of a queue that goes before a request at a worker that computes the least work first.
constexpr double kBefore = 0.3;

class RoundRobin final : public Policy {
 public:
  size_t Pick(const Situation& situation, Random& /*random*/) override {
    return next_++ % situation.workers.size();
  }
  std::string_view name() const override { return "round_robin"; }

 private:
  size_t next_ = 0;
};

class LeastLoad final : public Policy {
 public:
  size_t Pick(const Situation& situation, Random& random) override {
    std::vector<double> values;
    for (const WorkerView& worker : situation.workers) values.push_back(worker.requests);
    return LeastAtRandom(values, random);
  }
  std::string_view name() const override { return "least_load"; }
};

class Affinity final : public Policy {
 public:
  // A beginning that all prompts share, such as a system prompt, would draw all of them to the
  // worker that computed it first.
  static constexpr uint32_t kLeastShare = 4;

  size_t Pick(const Situation& situation, Random& random) override {
    uint32_t most = 0;
    for (const WorkerView& worker : situation.workers) most = std::max(most, worker.held_tokens);
    if (most < situation.prompt_tokens / kLeastShare) most = 0;
    std::vector<double> queues;
    std::vector<size_t> who;
    for (size_t i = 0; i < situation.workers.size(); ++i) {
      if (situation.workers[i].held_tokens < most) continue;
      queues.push_back(situation.workers[i].queue_seconds);
      who.push_back(i);
    }
    return who[LeastAtRandom(queues, random)];
  }
  std::string_view name() const override { return "affinity"; }
};

class LeastCost final : public Policy {
 public:
  size_t Pick(const Situation& situation, Random& random) override {
    std::vector<double> values;
    for (const WorkerView& worker : situation.workers) {
      values.push_back(CostOf(worker, situation).seconds);
    }
    return LeastAtRandom(values, random);
  }
  std::string_view name() const override { return "cost"; }
};

}  // namespace

Cost CostOf(const WorkerView& worker, const Situation& situation) {
  const double work = worker.work_seconds();
  const double arrivals =
      situation.arrivals_per_second / static_cast<double>(situation.workers.size());
  Cost cost;
  cost.delayed_requests = std::min(kMostDelayed, arrivals * (worker.queue_seconds + work) /
                                                     (1 - std::min(situation.use, kMostUse)));
  const double before =
      worker.first_in_first_out ? worker.queue_seconds : kBefore * worker.queue_seconds;
  cost.seconds = std::max(before, worker.fetch_seconds) +
                 (work + kPlace * worker.copied_seconds) * (1 + cost.delayed_requests);
  return cost;
}

Result<std::unique_ptr<Policy>> MakePolicy(std::string_view name) {
  std::unique_ptr<Policy> policy;
  if (name == "cost") policy = std::make_unique<LeastCost>();
  if (name == "affinity") policy = std::make_unique<Affinity>();
  if (name == "least_load") policy = std::make_unique<LeastLoad>();
  if (name == "round_robin") policy = std::make_unique<RoundRobin>();
  if (!policy) {
    return InvalidArgument("policy: got '{}', expected {}", name, fmt::join(PolicyNames(), ", "));
  }
  return policy;
}

std::vector<std::string> PolicyNames() { return {"cost", "affinity", "least_load", "round_robin"}; }

size_t LeastAtRandom(std::span<const double> values, Random& random) {
  const double least = *std::ranges::min_element(values);
  std::vector<size_t> best;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] <= least + 1e-9) best.push_back(i);
  }
  return best[std::uniform_int_distribution<size_t>(0, best.size() - 1)(random)];
}

}  // namespace cairn::router
