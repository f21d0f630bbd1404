#include "benchmarks/model/cluster_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "benchmarks/model/foreign_rules.h"
#include "cairn/common/clock.h"
#include "services/router/policy/dispatcher.h"
#include "services/router/relay/engine_load.h"

namespace cairn::simulated {
namespace {

// One router's knowledge of a worker that reports nothing.
struct SeenEngine {
  SeenEngine(const Clock* clock, int64_t cache_tokens) : load(clock), sent(cache_tokens) {}
  router::EngineLoad load;
  LruBlocks sent;
};

class Cluster {
 public:
  Cluster(const std::vector<Request>& requests, const ClusterOptions& options)
      : requests_(requests), options_(options), facts_(options.workers) {
    for (size_t i = 0; i < options.workers; ++i) {
      WorkerOptions worker = options.worker;
      if (!options.speeds.empty()) worker.speeds = worker.speeds.Slower(1 / options.speeds.at(i));
      workers_.push_back(std::make_unique<WorkerModel>(worker, requests));
      names_.push_back(fmt::format("worker-{}", i));
    }
    for (size_t i = 0; i < options.routers; ++i) {
      auto policy = MakeForeignRule(options.policy, &facts_);
      if (!policy) policy = router::MakePolicy(options.policy).value();
      router::Dispatcher::Options settings;
      settings.max_wait_seconds = options.router_max_wait_seconds;
      settings.prefill_tokens_per_second = options.worker.speeds.prefill_rate;
      settings.memory_tokens_per_second = options.worker.speeds.fetch_rate;
      routers_.push_back(
          std::make_unique<router::Dispatcher>(settings, std::move(policy), &clock_, i + 1));
      for (size_t worker = 0; options.engines && worker < options.workers; ++worker) {
        seen_.push_back(std::make_unique<SeenEngine>(&clock_, options.worker.speeds.cache_tokens));
      }
    }
    tickets_.resize(requests.size());
    calls_.resize(requests.size());
  }

  void Run() {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    size_t next = 0;
    double report = 0;
    std::vector<Answered> done;
    std::vector<Generated> generated;
    while (true) {
      size_t worker = 0;
      double step = kNever;
      for (size_t i = 0; i < workers_.size(); ++i) {
        const auto end = workers_[i]->next_event();
        if (end && *end < step) {
          step = *end;
          worker = i;
        }
      }
      const double arrival = next < requests_.size() ? requests_[next].arrival : kNever;
      const double now = std::min(step, arrival);
      if (now == kNever) return;
      for (; report <= now; report += options_.report_seconds) Report(report);
      MoveTo(now);
      if (arrival <= step) {
        Arrive(next++, now);
      } else {
        done.clear();
        generated.clear();
        workers_[worker]->Step(now, &done, &generated);
        if (options_.engines) {
          for (const Generated& one : generated) {
            SeenBy(one.request, worker).load.Tokens(calls_[one.request], 1);
          }
          for (const Answered& one : done) {
            SeenBy(one.request, worker).load.End(calls_[one.request]);
          }
        }
        for (const Answered& one : done) End(one);
      }
    }
  }

  const std::vector<Answered>& answered() const { return answered_; }
  size_t refused() const { return refused_; }
  double hit_tokens() const { return hit_tokens_; }

 private:
  router::Dispatcher& RouterOf(size_t request) { return *routers_[request % routers_.size()]; }

  SeenEngine& SeenBy(size_t request, size_t worker) {
    return *seen_[request % routers_.size() * workers_.size() + worker];
  }

  void MoveTo(double now) {
    const auto since = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(now));
    clock_.Advance(std::max(Duration(0), start_ + since - clock_.Now()));
  }

  void Report(double now) {
    MoveTo(now);
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (options_.engines) {
        for (size_t k = 0; k < routers_.size(); ++k) {
          routers_[k]->Report(names_[i], SeenBy(k, i).load.Report());
        }
        continue;
      }
      const router::WorkerLoad load = workers_[i]->Report();
      for (const auto& router : routers_) router->Report(names_[i], load);
    }
  }

  void Arrive(size_t index, double now) {
    const Request& request = requests_[index];
    router::Ask ask;
    ask.prompt_tokens = static_cast<uint32_t>(request.input_tokens);
    for (size_t i = 0; i < workers_.size(); ++i) {
      facts_[i] = workers_[i]->Facts();
      router::Offer offer = {.worker = names_[i]};
      offer.held.memory = static_cast<uint32_t>(
          options_.engines
              ? std::min(
                    request.input_tokens - 1,
                    kTraceBlock * static_cast<int64_t>(SeenBy(index, i).sent.Match(request.blocks)))
              : workers_[i]->CachedTokens(request));
      ask.offers.push_back(std::move(offer));
    }
    const router::Decision decision = RouterOf(index).Decide(ask);
    if (decision.kind != router::Decision::Kind::kPicked) {
      ++refused_;
      return;
    }
    tickets_[index] = decision.ticket;
    if (options_.engines) {
      SeenEngine& seen = SeenBy(index, decision.picked);
      calls_[index] = seen.load.Begin({.tokens = ask.prompt_tokens,
                                       .held_tokens = ask.offers[decision.picked].held.memory,
                                       .stream = true});
      seen.sent.Use(request.blocks);
    }
    WorkerModel& worker = *workers_[decision.picked];
    const int64_t cached = worker.CachedTokens(request);
    std::optional<size_t> displaced;
    if (!worker.Arrive(index, now, &displaced)) {
      ++refused_;
      RouterOf(index).OnEnd(decision.ticket, {});
      return;
    }
    if (displaced) {
      ++refused_;
      RouterOf(*displaced).OnEnd(tickets_[*displaced], {});
    }
    hit_tokens_ += static_cast<double>(cached);
  }

  void End(const Answered& one) {
    answered_.push_back(one);
    const auto tokens = static_cast<uint32_t>(requests_[one.request].output_tokens);
    RouterOf(one.request)
        .OnEnd(tickets_[one.request], {.generated_tokens = tokens, .complete = true});
  }

  const std::vector<Request>& requests_;
  const ClusterOptions& options_;
  FakeClock clock_;
  const TimePoint start_ = clock_.Now();
  std::vector<WorkerFacts> facts_;  // As of the last arrival.
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<WorkerModel>> workers_;
  std::vector<std::unique_ptr<router::Dispatcher>> routers_;
  std::vector<uint64_t> tickets_;  // By request.
  // By router, then by worker. Set for engines only.
  std::vector<std::unique_ptr<SeenEngine>> seen_;
  std::vector<uint64_t> calls_;  // By request: its id in the engine's load.
  std::vector<Answered> answered_;
  double hit_tokens_ = 0;
  size_t refused_ = 0;
};

}  // namespace

double Outcome::mean() const {
  return ttft.empty()
             ? 0
             : std::accumulate(ttft.begin(), ttft.end(), 0.0) / static_cast<double>(ttft.size());
}

double Outcome::percentile(double share) const {
  if (ttft.empty()) return 0;
  std::vector<double> sorted = ttft;
  std::ranges::sort(sorted);
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
}

Outcome Play(const std::vector<Request>& requests, const ClusterOptions& options,
             const std::string& tenant) {
  Cluster cluster(requests, options);
  cluster.Run();
  Outcome outcome;
  outcome.refused = cluster.refused();
  const double end = requests.back().arrival;
  double generated = 0, prompts = 0;
  for (const Answered& one : cluster.answered()) {
    const Request& request = requests[one.request];
    if (one.last_token <= end) generated += static_cast<double>(request.output_tokens);
    if (!tenant.empty() && request.tenant != tenant) continue;
    outcome.ttft.push_back(one.first_token - request.arrival);
  }
  for (const Request& request : requests) prompts += static_cast<double>(request.input_tokens);
  outcome.tokens_per_second = generated / end;
  outcome.hit_share = cluster.hit_tokens() / prompts;
  return outcome;
}

double LoadOf(const std::vector<Request>& requests, const WorkerSpeeds& speeds, size_t workers) {
  double work = 0;
  for (const Request& request : requests) {
    work += speeds.PrefillSeconds(0, request.input_tokens) +
            static_cast<double>(request.output_tokens) * speeds.DecodeSeconds(request.input_tokens);
  }
  return work / (requests.back().arrival * static_cast<double>(workers));
}

}  // namespace cairn::simulated
