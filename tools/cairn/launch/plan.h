#pragma once
// The processes that `cairn up` is to start, and the command lines that this makes.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cairn::cli {

struct LaunchPlan {
  size_t nodes = 1, workers = 1;
  size_t prefill_workers = 0;  // In addition to `workers`. They need nodes.
  std::string model = {};      // Absolute path of a GGUF file.
  // Threads of each worker. 0: the machine's CPUs, divided among all workers.
  int threads = 0;
  std::string ram = {};   // Host tier of each node, such as "512MiB".
  std::string disk = {};  // Disk tier of each node. Empty: none.
  // Where the router serves HTTP. Port 0: a free one. Empty: port 8000, or a free one if that is
  // taken (http_port.h).
  std::string http = {};
  // More settings, as KEY=VALUE.
  std::vector<std::string> node_settings = {}, worker_settings = {}, router_settings = {};
};

std::string NodeName(size_t i);           // From 0 on: "node-1", "node-2", ...
std::string WorkerName(size_t i);         // "worker-1", ...
std::string PrefillWorkerName(size_t i);  // "prefill-1", ...

// Without the program's path. `addresses`: of all nodes. `data`: directory of this one.
std::vector<std::string> NodeArguments(const LaunchPlan& plan, size_t i,
                                       const std::vector<std::string>& addresses,
                                       const std::string& data);
// Workers are dealt out to the nodes. `cpus`: of the machine.
std::vector<std::string> WorkerArguments(const LaunchPlan& plan, size_t i,
                                         const std::vector<std::string>& nodes, size_t cpus);
// The same of a worker that only computes prompts for others.
std::vector<std::string> PrefillWorkerArguments(const LaunchPlan& plan, size_t i,
                                                const std::vector<std::string>& nodes, size_t cpus);
// `http`: where it is to serve HTTP.
std::vector<std::string> RouterArguments(const LaunchPlan& plan, const std::string& http,
                                         const std::vector<std::string>& workers,
                                         const std::vector<std::string>& nodes);

}  // namespace cairn::cli
