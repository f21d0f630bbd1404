#include "tools/cairn/launch/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace cairn::cli {
namespace {

void AddSettings(std::vector<std::string>* argv, const std::vector<std::string>& settings) {
  for (const std::string& setting : settings) argv->insert(argv->end(), {"--set", setting});
}

}  // namespace

std::string NodeName(size_t i) { return fmt::format("node-{}", i + 1); }
std::string WorkerName(size_t i) { return fmt::format("worker-{}", i + 1); }
std::string PrefillWorkerName(size_t i) { return fmt::format("prefill-{}", i + 1); }

std::vector<std::string> NodeArguments(const LaunchPlan& plan, size_t i,
                                       const std::vector<std::string>& addresses,
                                       const std::string& data) {
  std::vector<std::string> argv = {"--listen",  addresses[i], "--admin.listen",  "127.0.0.1:0",
                                   "--node.id", NodeName(i),  "--host.capacity", plan.ram};
  if (!plan.disk.empty()) {
    argv.insert(argv.end(), {"--disk.path", data, "--disk.capacity", plan.disk});
  }
  if (plan.nodes > 1) {
    // All share the CPUs with the workers: the default of 15 ms is for machines of their own.
    argv.insert(argv.end(),
                {"--cluster.discovery", "static", "--cluster.name", "local", "--cluster.members",
                 fmt::format("{}", fmt::join(addresses, ",")), "--cluster.advertise", addresses[i],
                 "--cluster.lookup_deadline", "500ms"});
  }
  AddSettings(&argv, plan.node_settings);
  return argv;
}

std::vector<std::string> WorkerArguments(const LaunchPlan& plan, size_t i,
                                         const std::vector<std::string>& nodes, size_t cpus) {
  const size_t all = plan.workers + plan.prefill_workers;
  const size_t threads =
      plan.threads > 0 ? static_cast<size_t>(plan.threads) : std::max<size_t>(1, cpus / all);
  std::vector<std::string> argv = {
      "--model",        plan.model,    "--listen",  "127.0.0.1:0",
      "--admin.listen", "127.0.0.1:0", "--threads", std::to_string(threads)};
  if (!nodes.empty()) {
    // As for nodes: answers come late where everybody computes.
    argv.insert(argv.end(), {"--cache", nodes[i % nodes.size()], "--cache.match_deadline", "1s",
                             "--cache.stall_deadline", "1s"});
  }
  AddSettings(&argv, plan.worker_settings);
  return argv;
}

std::vector<std::string> PrefillWorkerArguments(const LaunchPlan& plan, size_t i,
                                                const std::vector<std::string>& nodes,
                                                size_t cpus) {
  std::vector<std::string> argv = WorkerArguments(plan, i, nodes, cpus);
  argv.insert(argv.begin(), {"--role", "prefill"});
  return argv;
}

std::vector<std::string> RouterArguments(const LaunchPlan& plan, const std::string& http,
                                         const std::vector<std::string>& workers,
                                         const std::vector<std::string>& nodes) {
  std::vector<std::string> argv = {"--model",        plan.model,
                                   "--listen",       "127.0.0.1:0",
                                   "--admin.listen", "127.0.0.1:0",
                                   "--http.listen",  http,
                                   "--workers",      fmt::format("{}", fmt::join(workers, ","))};
  if (!nodes.empty()) {
    argv.insert(argv.end(), {"--cache", fmt::format("{}", fmt::join(nodes, ","))});
  }
  AddSettings(&argv, plan.router_settings);
  return argv;
}

}  // namespace cairn::cli
