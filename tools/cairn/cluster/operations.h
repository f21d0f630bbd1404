#pragma once
// The operations that act on a whole cluster.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/clock.h"
#include "tools/cairn/cluster/survey.h"

namespace cairn::cli {

// One thread at a time.
struct Patience {
  const Clock* clock = nullptr;
  std::function<void(Duration)> pause;  // Waits.
  Duration limit{0};
};

// The outcome of an operation, node by node.
struct OperationReport {
  struct Node {
    std::string name;     // The id, or the address of a node that nobody knows.
    std::string problem;  // Empty: it is done there.
  };
  std::vector<Node> nodes;
  uint64_t namespaces = 0, hidden_blocks = 0;  // As the nodes that were called told.
  bool done() const;
};

// Bumps the namespace at the first member that knows it, from where the bump spreads by itself, and
// waits until all members know it. An error: no member knows the namespace, or none can be asked.
Result<OperationReport> BumpEverywhere(ClusterNodes* nodes,
                                       const std::vector<std::string>& addresses,
                                       const Digest& fingerprint, const Patience& patience);

// Drops the tenant's namespaces at all members.
Result<OperationReport> DropTenantEverywhere(ClusterNodes* nodes,
                                             const std::vector<std::string>& addresses,
                                             std::string_view tenant);

// Makes one node drain, and waits until it is gone. With a limit of 0 it does not wait.
// DEADLINE_EXCEEDED: it still answers.
Status DrainNode(ClusterNodes* nodes, const std::string& address, const Patience& patience);

}  // namespace cairn::cli
