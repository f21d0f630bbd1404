// cairn_cluster_simulation: clusters in one thread, with everything that goes wrong.
//
//   cairn_cluster_simulation --minutes 5          seeds from the number of today on
//   cairn_cluster_simulation --seed 17            one seed, shortened if it fails
//   cairn_cluster_simulation --targets            the table of targets
//
// Exit code 1: an invariant broke.

#include <chrono>
#include <iostream>

#include "common/config/config.h"
#include "common/log/log.h"
#include "tests/simulation/cluster/schedule.h"
#include "tests/simulation/cluster/targets.h"

namespace cairn::testing {
namespace {

struct Options {
  uint64_t seed = 0;
  uint64_t nodes = 0;
  uint64_t seconds = 60;
  double minutes = 1;
  bool targets = false;
};

int ShowTargets(size_t nodes) {
  bool met = true;
  for (const auto& measure : {
           std::function([&] { return MeasureBalance(1000); }),
           std::function([&] { return MeasureHerd(8, 3.5, 4); }),
           std::function([&] { return MeasureHerd(301, 5, 4); }),
           std::function([&] { return MeasureSleepingDiscovery(); }),
           std::function([&] { return MeasureTwoVersions(); }),
           std::function([&] { return MeasureChurn(nodes == 0 ? 100 : nodes); }),
       }) {
    const std::vector<TargetRow> rows = measure();
    std::cout << Table(rows) << std::flush;
    for (const TargetRow& row : rows) met &= row.met();
  }
  return met ? 0 : 1;
}

int Fails(const ClusterSchedule& schedule, const PlayResult& result) {
  std::cout << "seed " << schedule.seed << " fails: " << result.wrong.front() << std::endl;
  const ClusterSchedule shorter = Shorten(schedule);
  std::cout << ToText(shorter) << "// " << Play(shorter).wrong.front() << std::endl;
  return 1;
}

int Run(const Options& options) {
  log::Configure({.level = log::Level::kError});  // That nodes go away is what happens here.
  if (options.targets) return ShowTargets(options.nodes);
  const auto begun = std::chrono::steady_clock::now();
  const auto day = std::chrono::duration_cast<std::chrono::days>(
      std::chrono::system_clock::now().time_since_epoch());
  uint64_t seed = options.seed != 0 ? options.seed : static_cast<uint64_t>(day.count()) * 1000;
  const Duration length = std::chrono::seconds(options.seconds);
  PlayResult total;
  uint64_t seeds = 0;
  int failed = 0;
  do {
    const ClusterSchedule schedule = MakeSchedule(seed, options.nodes, length);
    const PlayResult result = Play(schedule);
    ++seeds;
    total.steps += result.steps;
    total.requests += result.requests;
    total.served_by_peers += result.served_by_peers;
    total.accepted += result.accepted;
    total.outdated += result.outdated;
    if (!result.wrong.empty()) failed += Fails(schedule, result);
    ++seed;
  } while (options.seed == 0 && failed < 3 &&
           std::chrono::steady_clock::now() - begun <
               std::chrono::duration<double>(options.minutes * 60));
  std::cout << seeds << " seeds up to " << seed - 1 << ": " << total.steps << " steps, "
            << total.requests << " requests, " << total.served_by_peers << " served by members, "
            << total.accepted << " blocks copied, " << total.outdated << " outdated by a bump, "
            << failed << " failed" << std::endl;
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace cairn::testing

int main(int argc, char** argv) {
  using namespace cairn;
  cairn::testing::Options options;
  config::Schema schema("cairn_cluster_simulation",
                        "Clusters in one thread: random troubles, and what must be true then.",
                        "cairn_cluster_simulation --minutes 5");
  schema.Integer("seed", &options.seed, "Plays this one only. 0: seeds from the day's on.");
  schema.Integer("nodes", &options.nodes, "Machines. 0: the seed decides.");
  schema.Integer("seconds", &options.seconds, "Of trouble, in simulated time, for each seed.");
  schema.Real("minutes", &options.minutes, "How long it plays seeds.",
              {.min = 0, .unit = "minutes"});
  schema.Switch("targets", &options.targets,
                "Prints the table of targets, and ends. Members come and go among --nodes.");
  const auto line = config::Load(schema, {argv + 1, argv + argc});
  if (!line.ok()) {
    std::cerr << ToString(line.status()) << "\n";
    return 2;
  }
  if (line->exit) {
    std::cout << line->output;
    return 0;
  }
  return cairn::testing::Run(options);
}
