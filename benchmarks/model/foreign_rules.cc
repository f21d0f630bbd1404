#include "benchmarks/model/foreign_rules.h"

#include <algorithm>

namespace cairn::simulated {
namespace {

using router::Random;
using router::Situation;
using router::WorkerView;

constexpr double kBlock = 64;  // Tokens.

class SglangRule final : public router::Policy {
 public:
  explicit SglangRule(const std::vector<WorkerFacts>* facts) : facts_(*facts) {}
  size_t Pick(const Situation& situation, Random& random) override {
    std::vector<double> requests, misses;
    for (const WorkerFacts& facts : facts_) requests.push_back(static_cast<double>(facts.requests));
    for (const WorkerView& worker : situation.workers) misses.push_back(-1.0 * worker.held_tokens);
    const auto [least, most] = std::ranges::minmax(requests);
    if (most - least > 64 && most > 1.5 * least) return router::LeastAtRandom(requests, random);
    const double longest = -*std::ranges::min_element(misses);
    if (longest > 0.3 * situation.prompt_tokens) return router::LeastAtRandom(misses, random);
    return router::LeastAtRandom(requests, random);
  }
  std::string_view name() const override { return "sglang"; }

 private:
  const std::vector<WorkerFacts>& facts_;
};

class DynamoRule final : public router::Policy {
 public:
  explicit DynamoRule(const std::vector<WorkerFacts>* facts) : facts_(*facts) {}
  size_t Pick(const Situation& situation, Random& random) override {
    std::vector<double> costs;
    for (size_t i = 0; i < situation.workers.size(); ++i) {
      const double held = situation.workers[i].held_tokens;
      const double prefill =
          static_cast<double>(facts_[i].prefill_tokens) + situation.prompt_tokens - held;
      const double blocks =
          static_cast<double>(facts_[i].resident_tokens) + situation.prompt_tokens;
      costs.push_back((prefill + blocks) / kBlock);
    }
    return router::LeastAtRandom(costs, random);
  }
  std::string_view name() const override { return "dynamo"; }

 private:
  const std::vector<WorkerFacts>& facts_;
};

class LlmdRule final : public router::Policy {
 public:
  explicit LlmdRule(const std::vector<WorkerFacts>* facts) : facts_(*facts) {}
  size_t Pick(const Situation& situation, Random& random) override {
    const auto [least, most] = std::ranges::minmax(facts_, {}, &WorkerFacts::waiting);
    const auto range = static_cast<double>(most.waiting - least.waiting);
    std::vector<double> costs;
    for (size_t i = 0; i < situation.workers.size(); ++i) {
      const double match =
          static_cast<double>(situation.workers[i].held_tokens) / situation.prompt_tokens;
      const double queue =
          range > 0 ? static_cast<double>(most.waiting - facts_[i].waiting) / range : 1;
      costs.push_back(-(3 * match + 2 * queue + 2 * (1 - facts_[i].kv_use)));
    }
    return router::LeastAtRandom(costs, random);
  }
  std::string_view name() const override { return "llm-d"; }

 private:
  const std::vector<WorkerFacts>& facts_;
};

class LeastTtft final : public router::Policy {
 public:
  size_t Pick(const Situation& situation, Random& random) override {
    std::vector<double> seconds;
    for (const WorkerView& worker : situation.workers) {
      seconds.push_back(std::max(worker.queue_seconds, worker.fetch_seconds) +
                        worker.work_seconds());
    }
    return router::LeastAtRandom(seconds, random);
  }
  std::string_view name() const override { return "least_ttft"; }
};

}  // namespace

std::unique_ptr<router::Policy> MakeForeignRule(std::string_view name,
                                                const std::vector<WorkerFacts>* facts) {
  if (name == "sglang") return std::make_unique<SglangRule>(facts);
  if (name == "dynamo") return std::make_unique<DynamoRule>(facts);
  if (name == "llm-d") return std::make_unique<LlmdRule>(facts);
  if (name == "least_ttft") return std::make_unique<LeastTtft>();
  return nullptr;
}

}  // namespace cairn::simulated
