#include "benchmarks/model/cluster_model.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <random>

namespace cairn::model {
namespace {

constexpr double kWindow = 60;  // Seconds over which the router measures.

class Cluster {
 public:
  Cluster(const std::vector<Request>& requests, const ClusterOptions& options)
      : requests_(requests), options_(options) {
    for (size_t i = 0; i < options.workers; ++i) {
      workers_.push_back(std::make_unique<WorkerModel>(options.worker, requests));
    }
    reports_.resize(workers_.size());
    picked_.resize(workers_.size());
  }

  void Run() {
    double now = 0;
    size_t next = 0;
    double report = 0;
    std::vector<Answered> done;
    while (true) {
      size_t worker = 0;
      double step = std::numeric_limits<double>::infinity();
      for (size_t i = 0; i < workers_.size(); ++i) {
        const auto end = workers_[i]->next_event();
        if (end && *end < step) {
          step = *end;
          worker = i;
        }
      }
      const double arrival = next < requests_.size() ? requests_[next].arrival
                                                     : std::numeric_limits<double>::infinity();
      if (std::min(step, arrival) == std::numeric_limits<double>::infinity()) return;
      now = std::min(step, arrival);
      for (; report <= now; report += options_.report_seconds) Report(report);
      if (arrival <= step) {
        Arrive(next++, now);
      } else {
        done.clear();
        workers_[worker]->Step(now, &done);
        answered_.insert(answered_.end(), done.begin(), done.end());
        for (const Answered& one : done) {
          outputs_ += static_cast<double>(requests_[one.request].output_tokens);
        }
      }
    }
  }

  const std::vector<Answered>& answered() const { return answered_; }
  size_t refused() const { return refused_; }
  double hit_tokens() const { return hit_tokens_; }

 private:
  void Report(double now) {
    double busy = 0;
    for (size_t i = 0; i < workers_.size(); ++i) {
      reports_[i] = workers_[i]->Report();
      picked_[i] = 0;
      busy += workers_[i]->busy_seconds();
    }
    use_.push_back({now, busy});
    while (use_.front().time < now - kWindow) use_.pop_front();
    while (!arrivals_.empty() && arrivals_.front() < now - kWindow) arrivals_.pop_front();
  }

  void Arrive(size_t index, double now) {
    arrivals_.push_back(now);
    const Request& request = requests_[index];
    const WorkerSpeeds& speeds = options_.worker.speeds;
    // Nobody knows the length of an answer before: the mean of those so far.
    const double output =
        answered_.empty() ? 300 : outputs_ / static_cast<double>(answered_.size());
    std::vector<WorkerView> views;
    for (size_t i = 0; i < workers_.size(); ++i) {
      const int64_t cached = workers_[i]->CachedTokens(request);
      views.push_back(
          {.queue_seconds = reports_[i].queue_seconds + picked_[i],
           .fetch_seconds = static_cast<double>(cached) / speeds.fetch_rate,
           .work_seconds = speeds.PrefillSeconds(cached, request.input_tokens - cached) +
                           output * speeds.DecodeSeconds(request.input_tokens)});
    }
    const double span = std::min(kWindow, std::max(now, 1.0));
    const double busy = use_.empty() ? 0 : use_.back().busy - use_.front().busy;
    const size_t pick =
        options_.route({.workers = views,
                        .arrivals_per_second = static_cast<double>(arrivals_.size()) / span,
                        .utilization = busy / span / static_cast<double>(workers_.size())},
                       random_);
    const int64_t cached = workers_[pick]->CachedTokens(request);
    std::optional<size_t> displaced;
    if (!workers_[pick]->Arrive(index, now, &displaced)) {
      ++refused_;
      return;
    }
    refused_ += displaced ? 1 : 0;
    hit_tokens_ += static_cast<double>(cached);
    picked_[pick] += speeds.PrefillSeconds(cached, request.input_tokens - cached);
  }

  struct Use {
    double time, busy;
  };

  const std::vector<Request>& requests_;
  const ClusterOptions& options_;
  std::vector<std::unique_ptr<WorkerModel>> workers_;
  std::vector<WorkerReport> reports_;
  std::vector<double> picked_;  // Seconds of prefill sent since the last report.
  std::deque<Use> use_;
  std::deque<double> arrivals_;
  std::vector<Answered> answered_;
  double outputs_ = 0, hit_tokens_ = 0;
  size_t refused_ = 0;
  std::mt19937_64 random_{1};
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

}  // namespace cairn::model
