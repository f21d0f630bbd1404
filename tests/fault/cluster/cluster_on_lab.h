#pragma once
// A cluster of cache nodes in a network of its own (tests/support/network_lab.h): node i runs in
// machine i, and each client of a test is in the tester's place.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/fault/support/fault_support.h"
#include "tests/support/network_lab.h"

namespace cairn::fault {

// Not thread-safe.
class ClusterOnLab {
 public:
  struct Options {
    size_t nodes = 3;                       // 1: a node alone, which knows of no cluster.
    testing::NetworkLab::Options lab = {};  // `machines` is filled in if it is less.
    std::vector<std::string> args = {};     // Arguments of every node.
  };
  // Starts the nodes with a static list of all of them, and returns when they are ready. They need
  // not know each other yet.
  static Result<std::unique_ptr<ClusterOnLab>> Start(Options options);

  testing::NetworkLab& lab() { return *lab_; }
  size_t size() const { return nodes_.size(); }
  std::string Address(size_t node) const;  // For clients and other nodes.
  std::string AdminAddress(size_t node) const;
  Process& process(size_t node) { return *nodes_[node].process; }

  // Returns when every node finds what is stored at every other one; else what is still missing.
  Status WaitUntilWhole(milliseconds timeout = seconds(120));

  Result<double> Metric(size_t node, const std::string& name,
                        const std::string& labels = {}) const {
    return SumOfMetric(AdminAddress(node), name, labels);
  }

  void Kill(size_t node) { process(node).Kill(); }
  // After Kill or an exit: with the same flags and, if it has any, the same disk.
  Status Restart(size_t node);
  // The packets from one node to another one, silently.
  Status Cut(size_t from, size_t to) { return lab_->Cut(from, to); }

  // A client whose home is this node, with the namespace open.
  std::unique_ptr<client::CacheClient> Connect(size_t node, const FaultModel& model) const {
    return ConnectAndOpen(Address(node), model);
  }

 private:
  struct NodeInLab {
    Process* process = nullptr;  // The lab's.
  };
  explicit ClusterOnLab(Options options) : options_(std::move(options)) {}
  Status Launch(size_t node);
  // The node's metrics of its cluster, for failed tests.
  std::string ClusterMetrics(size_t node) const;

  const Options options_;
  std::unique_ptr<testing::NetworkLab> lab_;
  std::vector<NodeInLab> nodes_;
  uint64_t probes_ = 0;
};

// Blocks of a prompt of the model below, of about 100 KiB each.
constexpr uint32_t kPromptBlocks = 12;
// A namespace of its own, with blocks so large that some of a prompt's are announced to others:
// members tell each other of one block in about 512 tokens.
FaultModelOptions ModelForCluster(const std::string& name);
// Keys of a prompt of kPromptBlocks blocks. Different numbers share none. `model`: as above.
std::vector<BlockKey> LongPrompt(const FaultModel& model, uint64_t number);

}  // namespace cairn::fault
