// cairn_cluster_simulation: clusters in one thread, with everything that goes wrong.
//
//   cairn_cluster_simulation --minutes 5          seeds from the number of today on
//   cairn_cluster_simulation --seed 17            one seed, shortened if it fails
//   cairn_cluster_simulation --whole --minutes 5  the same with the whole engine of a node
//   cairn_cluster_simulation --targets            the table of targets
//
// Exit code 1: an invariant broke.

#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <utility>

#include "common/config/config.h"
#include "common/log/log.h"
#include "tests/simulation/cluster/schedule.h"
#include "tests/simulation/cluster/targets.h"

namespace cairn::testing {
namespace {

struct Options {
  uint64_t seed = 0;
  uint64_t nodes = 0;
  uint64_t herd = 300;
  uint64_t seconds = 60;
  double minutes = 1;
  bool whole = false;
  bool targets = false;
  bool json = false;
  std::string only;
};

int ShowTargets(const Options& options) {
  const size_t nodes = options.nodes == 0 ? 100 : options.nodes;
  const std::pair<const char*, std::function<std::vector<TargetRow>()>> targets[] = {
      {"balance", [] { return MeasureBalance(1000); }},
      {"herd", [] { return MeasureHerd(8, kEight); }},
      {"sleep", [] { return MeasureSleepingDiscovery(); }},
      {"versions", [] { return MeasureTwoVersions(); }},
      {"churn", [nodes] { return MeasureChurn(nodes); }},
      {"large_herd", [&options] { return MeasureHerd(options.herd + 1, kHundreds); }},
  };
  bool met = true;
  for (const auto& [name, measure] : targets) {
    if (!options.only.empty() && options.only != name) continue;
    const std::vector<TargetRow> rows = measure();
    std::cout << (options.json ? Json(rows) : Table(rows)) << std::flush;
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
  if (options.whole && options.nodes > 32) {
    std::cerr << "whole: got " << options.nodes << " nodes, expected at most 32\n";
    return 2;
  }
  if (options.targets) return ShowTargets(options);
  const auto begun = std::chrono::steady_clock::now();
  const auto day = std::chrono::duration_cast<std::chrono::days>(
      std::chrono::system_clock::now().time_since_epoch());
  uint64_t seed = options.seed != 0 ? options.seed : static_cast<uint64_t>(day.count()) * 1000;
  const Duration length = std::chrono::seconds(options.seconds);
  PlayResult total;
  uint64_t seeds = 0;
  int failed = 0;
  do {
    ClusterSchedule schedule = MakeSchedule(seed, options.nodes, length);
    schedule.whole = options.whole;
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
  schema.Integer("herd", &options.herd, "Members that want one prefix, among the targets.");
  schema.Integer("seconds", &options.seconds, "Of trouble, in simulated time, for each seed.");
  schema.Real("minutes", &options.minutes, "How long it plays seeds.",
              {.min = 0, .unit = "minutes"});
  schema.Switch("whole", &options.whole, "Nodes have their whole engine. At most 32 of them.");
  schema.Text("only", &options.only,
              "Of the targets: balance, herd, sleep, versions, churn or large_herd. Empty: all.");
  schema.Switch("json", &options.json, "One line of JSON for each target.");
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
