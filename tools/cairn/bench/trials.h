#pragma once
// Trials of a workload with its yardsticks taken between them, and what to do when others use the
// machine meanwhile.

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/status.h"
#include "tools/cairn/bench/workload.h"
#include "tools/cairn/bench/yardstick.h"

namespace cairn::cli::bench {

// A trial during which others used more of a core than this is dropped and repeated.
inline constexpr double kMaxForeignCores = 0.2;

struct TrialOptions {
  uint32_t repeat = 5;
  uint32_t most_dropped = 10;  // Then dropped ones are taken after all, and the result says so.
  double seconds = 0.5;        // The time of each trial.
};

struct Trials {
  struct Series {
    std::string name, unit;
    std::vector<double> samples;  // One a trial.
  };
  std::vector<Series> metrics;
  // The mean of before and after each trial; as many samples as trials.
  std::vector<Series> yardsticks;
  uint32_t dropped = 0;
  bool noisy = false;                 // Some of the trials taken had a busy neighbour.
  std::vector<double> foreign_cores;  // The foreign cores of the trials taken.
};

// Called at a trial's begin; what it returns, at its end, gives the cores that others used between.
using ForeignLoad = std::function<std::function<double()>()>;

// The first error of the workload or a yardstick. `tell`: "trial 2 of 5", for progress.
Result<Trials> RunTrials(Workload& workload,
                         const std::vector<std::unique_ptr<Yardstick>>& yardsticks,
                         const TrialOptions& options, const ForeignLoad& foreign_load,
                         const std::function<void(const std::string&)>& tell);

}  // namespace cairn::cli::bench
