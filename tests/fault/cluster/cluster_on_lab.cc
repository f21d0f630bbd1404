#include "tests/fault/cluster/cluster_on_lab.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "common/metrics/admin_server.h"

namespace cairn::fault {
namespace {

using testing::NetworkLab;

// The same at every machine.
constexpr int kPort = 7301, kAdminPort = 7302;

}  // namespace

FaultModelOptions ModelForCluster(const std::string& name) {
  // So large a number of roots that no two prompts have the same one.
  return {.tenant = "cluster",
          .model = name,
          .block_tokens = 256,
          .roots = 1 << 30,
          .branching = 1,
          .depth = kPromptBlocks};
}

std::vector<BlockKey> LongPrompt(const FaultModel& model, uint64_t number) {
  for (uint64_t candidate = 0;; ++candidate) {
    std::vector<BlockKey> keys = model.MakePrompt(candidate);
    if (keys.size() == kPromptBlocks && number-- == 0) return keys;
  }
}

Result<std::unique_ptr<ClusterOnLab>> ClusterOnLab::Start(Options options) {
  options.lab.machines = std::max(options.lab.machines, options.nodes);
  std::unique_ptr<ClusterOnLab> cluster(new ClusterOnLab(std::move(options)));
  CAIRN_ASSIGN_OR_RETURN(cluster->lab_, NetworkLab::Create(cluster->options_.lab));
  cluster->nodes_.resize(cluster->options_.nodes);
  for (size_t node = 0; node < cluster->size(); ++node) {
    CAIRN_RETURN_IF_ERROR(cluster->Launch(node));
  }
  for (NodeInLab& node : cluster->nodes_) {
    CAIRN_RETURN_IF_ERROR(node.process->WaitForLine("ready ", seconds(120)).status());
  }
  return cluster;
}

std::string ClusterOnLab::Address(size_t node) const {
  return fmt::format("{}:{}", lab_->Address(node), kPort);
}

std::string ClusterOnLab::AdminAddress(size_t node) const {
  return fmt::format("{}:{}", lab_->Address(node), kAdminPort);
}

Status ClusterOnLab::Launch(size_t node) {
  std::vector<std::string> argv = {
      testing::Binary("cairn-cache"), "--listen", Address(node), "--admin.listen",
      AdminAddress(node), "--host.capacity", "64MiB", "--log.level", "error",
      // Sockets with a path would lead around the network.
      "--local.socket", "off", "--admin.socket", "off", "--i-accept-plaintext-on-the-network"};
  if (size() > 1) {
    std::string members;
    for (size_t member = 0; member < size(); ++member) {
      if (member > 0) members += ',';
      members += Address(member);
    }
    argv.insert(argv.end(), {"--cluster.discovery", "static", "--cluster.name", "lab",
                             "--cluster.members", members, "--cluster.advertise", Address(node),
                             "--cluster.host", fmt::format("machine-{}", node)});
  }
  argv.insert(argv.end(), options_.args.begin(), options_.args.end());
  CAIRN_ASSIGN_OR_RETURN(nodes_[node].process, lab_->Start(node, {.argv = argv}));
  return OkStatus();
}

Status ClusterOnLab::Restart(size_t node) {
  CAIRN_RETURN_IF_ERROR(Launch(node));
  return process(node).WaitForLine("ready ", seconds(120)).status();
}

Status ClusterOnLab::WaitUntilWhole(milliseconds timeout) {
  const FaultModel model(ModelForCluster(fmt::format("whole {}", ++probes_)));
  std::vector<std::unique_ptr<client::CacheClient>> clients;
  for (size_t node = 0; node < size(); ++node) clients.push_back(Connect(node, model));
  for (size_t holder = 0; holder < size(); ++holder) {
    for (size_t reader = 0; reader < size(); ++reader) {
      if (reader == holder) continue;
      // A prompt for each pair, because a reader keeps a copy.
      const std::vector<BlockKey> keys = LongPrompt(model, holder * size() + reader);
      const WriteOutcome written = Write(*clients[holder], model, keys, 0, model.whole());
      if (written.stored_blocks != keys.size()) {
        return Errorf(StatusCode::kInternal, "node {} stored {} of {} blocks: {}", holder,
                      written.stored_blocks, keys.size(), ToString(written.status));
      }
      uint32_t matched = 0;
      const auto found = [&] {
        matched = Read(*clients[reader], model, keys).matched_blocks;
        return matched == keys.size();
      };
      if (!WaitUntil(found, timeout)) {
        return Errorf(StatusCode::kDeadlineExceeded,
                      "node {} finds {} of {} blocks of node {}; the reader:\n{}the holder:\n{}",
                      reader, matched, keys.size(), holder, ClusterMetrics(reader),
                      ClusterMetrics(holder));
      }
    }
  }
  return OkStatus();
}

std::string ClusterOnLab::ClusterMetrics(size_t node) const {
  const auto text = metrics::HttpGet(fmt::format("{}:{}", lab_->Address(node), kAdminPort),
                                     "/metrics", seconds(60));
  if (!text.ok()) return ToString(text.status()) + "\n";
  std::istringstream lines(*text);
  std::string found;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("cairn_cluster_")) found += line + "\n";
  }
  return found;
}

}  // namespace cairn::fault
