#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/model/generated_requests.h"
#include "benchmarks/model/scenarios.h"

namespace cairn::simulated {
namespace {

const std::vector<std::string> kPolicies = {"round_robin", "least_load", "affinity",   "sglang",
                                            "dynamo",      "llm-d",      "least_ttft", "cost"};
// Least time to first token is shown, but not what the cost is compared with.
const std::vector<std::string> kJudged = {"round_robin", "least_load", "affinity",
                                          "sglang",      "dynamo",     "llm-d"};
const std::vector<std::string> kForeign = {"sglang", "dynamo", "llm-d"};
// The load that four workers bear with prefix caches, with all prompts in order.
constexpr double kSaturating = 1.34;

PolicyRun RunOf(const std::string& scenario, const std::string& policy, double load,
                const Outcome& outcome) {
  std::fprintf(stderr, "%-18s load %.2f %-12s %s\n", scenario.c_str(), load, policy.c_str(),
               Line(outcome).c_str());
  return {.scenario = scenario,
          .policy = policy,
          .load = load,
          .p50 = outcome.percentile(0.5),
          .p90 = outcome.percentile(0.9),
          .p99 = outcome.percentile(0.99),
          .mean = outcome.mean(),
          .hit_share = outcome.hit_share,
          .tokens_per_second = outcome.tokens_per_second,
          .refused = outcome.refused};
}

using ByPolicy = std::map<std::string, PolicyRun>;

ByPolicy PlayAll(const std::string& scenario, const std::vector<Request>& sped, double load,
                 ClusterOptions options, Report* report) {
  ByPolicy runs;
  for (const std::string& policy : kPolicies) {
    options.policy = policy;
    runs[policy] = RunOf(scenario, policy, load, Play(sped, options));
    report->runs.push_back(runs[policy]);
  }
  return runs;
}

// A row: the cost policy against the best of others.
void AgainstBest(const std::string& name, const ByPolicy& runs,
                 const std::vector<std::string>& others, double PolicyRun::*what, Report* report) {
  double best = runs.at(others.front()).*what;
  for (const std::string& other : others) best = std::min(best, runs.at(other).*what);
  const double own = runs.at("cost").*what;
  report->rows.push_back({name, own, "s", best, best / own});
}

}  // namespace

void CompareRouting(const std::vector<Request>& requests, Report* report) {
  for (const double load : {0.5, 0.84, 1.0, 1.17, 1.34}) {
    const ByPolicy runs =
        PlayAll("routing", AtLoad(requests, load, ClusterOptions().workers), load, {}, report);
    const auto name = [&](const char* what) {
      return fmt::format("routing_{}_{:.2f}", what, load);
    };
    AgainstBest(name("p50"), runs, kJudged, &PolicyRun::p50, report);
    AgainstBest(name("p90"), runs, kJudged, &PolicyRun::p90, report);
    AgainstBest(name("p99"), runs, kJudged, &PolicyRun::p99, report);
    if (load < 0.84) continue;
    AgainstBest(name("mean"), runs, kForeign, &PolicyRun::mean, report);
    if (load > 0.84) continue;
    AgainstBest(name("round_robin_p50"), runs, {"round_robin"}, &PolicyRun::p50, report);
    AgainstBest(name("round_robin_p99"), runs, {"round_robin"}, &PolicyRun::p99, report);
  }
}

void CompareReplicas(const std::vector<Request>& requests, Report* report) {
  for (const double load : {0.84, 1.17}) {
    for (const double seconds : {0.1, 1.0}) {
      const std::vector<Request> sped = AtLoad(requests, load, ClusterOptions().workers);
      ClusterOptions options = {.report_seconds = seconds};
      const std::string scenario = fmt::format("replicas_{:.1f}s", seconds);
      const PolicyRun one = RunOf(scenario + "_one", "cost", load, Play(sped, options));
      options.routers = 4;
      const PolicyRun four = RunOf(scenario + "_four", "cost", load, Play(sped, options));
      report->runs.push_back(one);
      report->runs.push_back(four);
      report->rows.push_back({fmt::format("replicas_p50_{:.2f}_{:.1f}s", load, seconds), four.p50,
                              "s", one.p50, one.p50 / four.p50});
    }
  }
}

void CompareShedding(const std::vector<Request>& requests, Report* report) {
  const ClusterOptions options = {.router_max_wait_seconds = 2};
  const PolicyRun once = RunOf("shedding", "cost", kSaturating,
                               Play(AtLoad(requests, kSaturating, options.workers), options));
  const PolicyRun twice = RunOf("shedding", "cost", 2 * kSaturating,
                                Play(AtLoad(requests, 2 * kSaturating, options.workers), options));
  report->runs.push_back(once);
  report->runs.push_back(twice);
  report->rows.push_back({"shedding_p99", twice.p99, "s", once.p99, once.p99 / twice.p99});
  report->rows.push_back({"shedding_tokens_per_second", twice.tokens_per_second, "tokens/s",
                          once.tokens_per_second,
                          twice.tokens_per_second / once.tokens_per_second});
}

void CompareUnequal(const std::vector<Request>& requests, Report* report) {
  const ClusterOptions options = {.speeds = {1.5, 1, 1, 0.5}};
  for (const double load : {0.84, 1.17}) {
    const ByPolicy runs =
        PlayAll("unequal", AtLoad(requests, load, options.workers), load, options, report);
    AgainstBest(fmt::format("unequal_mean_{:.2f}", load), runs, kJudged, &PolicyRun::mean, report);
  }
}

void CompareFirstInFirstOut(const std::vector<Request>& requests, Report* report) {
  ClusterOptions options;
  options.worker.first_in_first_out = true;
  for (const double load : {0.5, 0.84, 1.0, 1.17, 1.34}) {
    const ByPolicy runs = PlayAll("first_in_first_out", AtLoad(requests, load, options.workers),
                                  load, options, report);
    const auto name = [&](const char* what) { return fmt::format("fifo_{}_{:.2f}", what, load); };
    AgainstBest(name("p50"), runs, kJudged, &PolicyRun::p50, report);
    AgainstBest(name("p90"), runs, kJudged, &PolicyRun::p90, report);
    AgainstBest(name("p99"), runs, kJudged, &PolicyRun::p99, report);
    AgainstBest(name("mean"), runs, kForeign, &PolicyRun::mean, report);
  }
}

void CompareEngines(const std::vector<Request>& requests, Report* report) {
  ClusterOptions options;
  options.worker.first_in_first_out = true;
  for (const double load : {0.5, 0.84, 1.0, 1.17, 1.34}) {
    const std::vector<Request> sped = AtLoad(requests, load, options.workers);
    options.engines = false;
    const PolicyRun reports = RunOf("engines_reporting", "cost", load, Play(sped, options));
    options.engines = true;
    const PolicyRun seen = RunOf("engines_seen", "cost", load, Play(sped, options));
    report->runs.push_back(reports);
    report->runs.push_back(seen);
    report->rows.push_back({fmt::format("engines_mean_{:.2f}", load), seen.mean, "s", reports.mean,
                            reports.mean / seen.mean});
  }
}

void CompareGenerated(const std::vector<Request>& /*requests*/, Report* report) {
  for (const char* kind : {"agents", "documents", "bursts"}) {
    const std::vector<Request> generated = GenerateRequests(kind, 7);
    // Without any hit documents and agents would be several times as much work.
    for (const double load : {0.84, 1.17, 2.0}) {
      const ByPolicy runs =
          PlayAll(kind, AtLoad(generated, load, ClusterOptions().workers), load, {}, report);
      const auto name = [&](const char* what) {
        return fmt::format("{}_{}_{:.2f}", kind, what, load);
      };
      AgainstBest(name("p50"), runs, kJudged, &PolicyRun::p50, report);
      AgainstBest(name("p90"), runs, kJudged, &PolicyRun::p90, report);
      AgainstBest(name("p99"), runs, kJudged, &PolicyRun::p99, report);
      AgainstBest(name("mean"), runs, kForeign, &PolicyRun::mean, report);
    }
  }
}

}  // namespace cairn::simulated
