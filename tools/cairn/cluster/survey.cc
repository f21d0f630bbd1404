#include "tools/cairn/cluster/survey.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

namespace cairn::cli {
std::string NameOf(const SurveyedNode& node) {
  return node.node_id.empty() ? node.address : node.node_id;
}

namespace {

// Members that a node does not see, though it or they are there.
void CompareViews(Survey* survey) {
  for (const SurveyedNode& node : survey->nodes) {
    if (!node.status.ok()) continue;
    for (const SurveyedNode& other : survey->nodes) {
      if (other.node_id.empty() || node.Sees(other.node_id)) continue;
      const auto& absent = node.view.absent;
      const auto why = std::find_if(absent.begin(), absent.end(), [&](const auto& entry) {
        return entry.address == other.address;
      });
      survey->differences.push_back(
          fmt::format("{} does not see {}: {}", NameOf(node), NameOf(other),
                      why == absent.end() ? "its discovery does not name it" : why->reason));
    }
    for (const client::AbsentMember& absent : node.view.absent) {
      const bool known =
          std::any_of(survey->nodes.begin(), survey->nodes.end(), [&](const auto& other) {
            return other.address == absent.address && !other.node_id.empty();
          });
      if (known) continue;
      survey->differences.push_back(
          fmt::format("{} sees no member at {}: {}", NameOf(node), absent.address, absent.reason));
    }
  }
}

void CompareNodes(Survey* survey) {
  std::set<uint64_t> bumps;
  for (const SurveyedNode& node : survey->nodes) {
    if (!node.status.ok()) {
      survey->differences.push_back(
          fmt::format("{} does not answer: {}", NameOf(node), Message(node.status)));
      continue;
    }
    bumps.insert(node.view.bumps_digest);
    if (node.view.replaced_by) {
      survey->differences.push_back(
          fmt::format("{} at {} keeps out: a newer process at {} has its id", NameOf(node),
                      node.address, node.view.replaced_by->address));
    }
    if (node.view.cluster != survey->cluster) {
      survey->differences.push_back(fmt::format("{} belongs to cluster '{}', others to '{}'",
                                                NameOf(node), node.view.cluster, survey->cluster));
    }
  }
  if (bumps.size() > 1) {
    survey->differences.push_back(
        fmt::format("the members know {} different sets of bumps of namespaces", bumps.size()));
  }
}

}  // namespace

bool SurveyedNode::Sees(const std::string& other) const {
  return view.self.node_id == other ||
         std::any_of(view.members.begin(), view.members.end(),
                     [&](const auto& member) { return member.node_id == other; });
}

Result<Survey> TakeSurvey(ClusterNodes* nodes, const std::vector<std::string>& addresses,
                          bool stats) {
  Survey survey;
  std::deque<std::pair<std::string, std::string>> waiting;  // Address, id if it is known.
  std::set<std::string> asked;                              // Addresses.
  std::set<std::pair<std::string, uint64_t>> known;         // Processes that have answered.
  for (const std::string& address : addresses) waiting.emplace_back(address, "");
  Status worst;
  bool answered = false;
  while (!waiting.empty()) {
    const auto [address, id] = waiting.front();
    waiting.pop_front();
    if (!asked.insert(address).second) continue;
    SurveyedNode node{.address = address, .node_id = id, .status = {}, .view = {}, .stats = {}};
    auto view = nodes->Members(address);
    node.status = view.status();
    if (view.ok()) {
      node.view = *std::move(view);
      node.node_id = node.view.self.node_id;
      // One process may be known under several addresses.
      if (!known.emplace(node.node_id, node.view.self.incarnation).second) continue;
      if (!node.view.self.address.empty()) {
        node.address = node.view.self.address;
        asked.insert(node.address);
      }
      answered = true;
      if (survey.cluster.empty()) survey.cluster = node.view.cluster;
      for (const client::ClusterMember& member : node.view.members) {
        waiting.emplace_back(member.address, member.node_id);
      }
      if (stats) {
        if (auto stat = nodes->Stat(address); stat.ok()) node.stats = *std::move(stat);
      }
    } else if (worst.ok()) {
      worst = Annotate(node.status, "cache node at " + address);
    }
    survey.nodes.push_back(std::move(node));
  }
  if (!answered) return worst.ok() ? InvalidArgument("no address was given") : worst;
  std::sort(survey.nodes.begin(), survey.nodes.end(), [](const auto& a, const auto& b) {
    return std::tie(a.node_id, a.address) < std::tie(b.node_id, b.address);
  });
  CompareNodes(&survey);
  CompareViews(&survey);
  return survey;
}

}  // namespace cairn::cli
