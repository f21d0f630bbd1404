#include "tools/cairn/bench/trials.h"

#include <algorithm>

namespace cairn::cli::bench {
namespace {

struct Trial {
  std::vector<Metric> metrics;
  std::vector<double> yardsticks;
  double foreign_cores = 0;
};

Result<std::vector<double>> MeasureAll(const std::vector<std::unique_ptr<Yardstick>>& yardsticks) {
  std::vector<double> values;
  for (const auto& yardstick : yardsticks) {
    CAIRN_ASSIGN_OR_RETURN(const double value, yardstick->Measure());
    values.push_back(value);
  }
  return values;
}

std::vector<double> Means(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> means(a.size());
  for (size_t i = 0; i < a.size(); ++i) means[i] = (a[i] + b[i]) / 2;
  return means;
}

Trials Collect(const std::vector<Trial>& taken,
               const std::vector<std::unique_ptr<Yardstick>>& yardsticks) {
  Trials out;
  for (const Metric& metric : taken.front().metrics) {
    out.metrics.push_back({metric.name, metric.unit, {}});
  }
  for (const auto& yardstick : yardsticks) {
    out.yardsticks.push_back({yardstick->name(), "GB/s", {}});
  }
  for (const Trial& trial : taken) {
    for (size_t i = 0; i < out.metrics.size(); ++i) {
      out.metrics[i].samples.push_back(trial.metrics[i].value);
    }
    for (size_t i = 0; i < out.yardsticks.size(); ++i) {
      out.yardsticks[i].samples.push_back(trial.yardsticks[i]);
    }
    out.foreign_cores.push_back(trial.foreign_cores);
  }
  return out;
}

}  // namespace

Result<Trials> RunTrials(Workload& workload,
                         const std::vector<std::unique_ptr<Yardstick>>& yardsticks,
                         const TrialOptions& options, const ForeignLoad& foreign_load,
                         const std::function<void(const std::string&)>& tell) {
  std::vector<Trial> kept, dropped;
  CAIRN_ASSIGN_OR_RETURN(std::vector<double> before, MeasureAll(yardsticks));
  while (kept.size() < options.repeat && dropped.size() <= options.most_dropped) {
    tell(fmt::format("trial {} of {}", kept.size() + 1, options.repeat));
    Trial trial;
    const std::function<double()> foreign = foreign_load();
    CAIRN_ASSIGN_OR_RETURN(trial.metrics, workload.Trial(options.seconds));
    CAIRN_ASSIGN_OR_RETURN(std::vector<double> after, MeasureAll(yardsticks));
    trial.foreign_cores = foreign();
    trial.yardsticks = Means(before, after);
    before = std::move(after);
    (trial.foreign_cores > kMaxForeignCores ? dropped : kept).push_back(std::move(trial));
  }

  const auto dropped_count = static_cast<uint32_t>(dropped.size());
  const bool noisy = kept.size() < options.repeat;
  if (noisy) {
    // The quietest of the busy ones.
    std::sort(dropped.begin(), dropped.end(),
              [](const Trial& a, const Trial& b) { return a.foreign_cores < b.foreign_cores; });
    for (Trial& trial : dropped) {
      if (kept.size() == options.repeat) break;
      kept.push_back(std::move(trial));
    }
  }
  Trials out = Collect(kept, yardsticks);
  out.noisy = noisy;
  out.dropped = dropped_count;
  return out;
}

}  // namespace cairn::cli::bench
