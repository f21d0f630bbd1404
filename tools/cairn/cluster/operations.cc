#include "tools/cairn/cluster/operations.h"

#include <algorithm>
#include <map>

namespace cairn::cli {
namespace {

constexpr Duration kPause = std::chrono::milliseconds(100);

// The node where the namespace was bumped.
Result<const SurveyedNode*> BumpSomewhere(ClusterNodes* nodes, const Survey& survey,
                                          const Digest& fingerprint, OperationReport* report) {
  Status worst = Errorf(StatusCode::kNotFound, "no member knows namespace {}", fingerprint.Hex());
  for (const SurveyedNode& node : survey.nodes) {
    if (!node.status.ok()) continue;
    const auto bumped = nodes->BumpEpoch(node.address, fingerprint);
    if (bumped.ok()) {
      report->namespaces = bumped->namespaces;
      report->hidden_blocks = bumped->hidden_blocks;
      return &node;
    }
    if (bumped.status().code() != StatusCode::kNotFound) {
      worst = Annotate(bumped.status(), NameOf(node));
    }
  }
  return worst;
}

}  // namespace

bool OperationReport::done() const {
  return std::all_of(nodes.begin(), nodes.end(),
                     [](const Node& node) { return node.problem.empty(); });
}

Result<OperationReport> BumpEverywhere(ClusterNodes* nodes,
                                       const std::vector<std::string>& addresses,
                                       const Digest& fingerprint, const Patience& patience) {
  CAIRN_ASSIGN_OR_RETURN(const Survey survey, TakeSurvey(nodes, addresses, /*stats=*/false));
  OperationReport report;
  CAIRN_ASSIGN_OR_RETURN(const SurveyedNode* const first,
                         BumpSomewhere(nodes, survey, fingerprint, &report));
  const TimePoint end = patience.clock->Now() + patience.limit;
  for (;;) {
    report.nodes.clear();
    // A node tells of its own bump a moment later.
    const auto there = nodes->Members(first->address);
    const bool known =
        survey.cluster.empty() || (there.ok() && there->bumps_digest != first->view.bumps_digest);
    for (const SurveyedNode& node : survey.nodes) {
      std::string problem;
      if (&node != first) {
        const auto view = nodes->Members(node.address);
        if (!view.ok()) {
          problem = "it does not answer: " + std::string(Message(view.status()));
        } else if (!known || view->bumps_digest != there->bumps_digest) {
          problem = "it does not know the bump yet";
        }
      }
      report.nodes.push_back({NameOf(node), std::move(problem)});
    }
    if ((known && report.done()) || patience.clock->Now() >= end) return report;
    patience.pause(kPause);
  }
}

Result<OperationReport> DropTenantEverywhere(ClusterNodes* nodes,
                                             const std::vector<std::string>& addresses,
                                             std::string_view tenant) {
  CAIRN_ASSIGN_OR_RETURN(const Survey survey, TakeSurvey(nodes, addresses, /*stats=*/false));
  OperationReport report;
  for (const SurveyedNode& node : survey.nodes) {
    std::string problem;
    const auto dropped = node.status.ok() ? nodes->DropTenant(node.address, tenant)
                                          : Result<client::DropResult>(node.status);
    if (dropped.ok()) {
      report.namespaces += dropped->namespaces;
      report.hidden_blocks += dropped->hidden_blocks;
    } else if (dropped.status().code() != StatusCode::kNotFound) {
      problem = Message(dropped.status());
    }
    report.nodes.push_back({NameOf(node), std::move(problem)});
  }
  return report;
}

Status DrainNode(ClusterNodes* nodes, const std::string& address, const Patience& patience) {
  CAIRN_RETURN_IF_ERROR(nodes->Drain(address).status());
  const TimePoint end = patience.clock->Now() + patience.limit;
  while (patience.clock->Now() < end) {
    const Status answer = nodes->Members(address).status();
    if (answer.code() == StatusCode::kUnavailable) return OkStatus();
    patience.pause(kPause);
  }
  if (patience.limit == Duration(0)) return OkStatus();
  return Errorf(StatusCode::kDeadlineExceeded,
                "cache node at {}: it drains, and still answers after the time limit", address);
}

}  // namespace cairn::cli
