#pragma once
// The answers of all members of a cluster about themselves and about each other.

#include <optional>
#include <string>
#include <vector>

#include "tools/cairn/cluster/nodes.h"

namespace cairn::cli {

// One node that was asked.
struct SurveyedNode {
  std::string address;
  std::string node_id;  // Empty: nobody knows it.
  Status status;        // The status of its answer. Not OK: what follows is empty.
  client::ClusterMembers view;
  std::optional<client::NodeStats> stats;

  // Whether it sees the member.
  bool Sees(const std::string& other) const;
};

// The name of the node for people.
std::string NameOf(const SurveyedNode& node);

struct Survey {
  std::string cluster;  // Empty: a node that is alone.
  std::vector<SurveyedNode> nodes;
  // The contradictions, one sentence each. Empty: all see the same members, know the same bumps of
  // namespaces, and answered.
  std::vector<std::string> differences;
};

// Asks the nodes at `addresses` for their members, and then each member that one of them names.
// With `stats` also for what their tiers hold. An error: none of `addresses` answered. One thread.
Result<Survey> TakeSurvey(ClusterNodes* nodes, const std::vector<std::string>& addresses,
                          bool stats);

}  // namespace cairn::cli
