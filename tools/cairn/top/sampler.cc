#include "tools/cairn/top/sampler.h"

#include <chrono>
#include <thread>
#include <utility>

namespace cairn::cli {

Sampler::Sampler(std::unique_ptr<ClusterNodes> nodes, std::map<std::string, std::string> node_names,
                 std::vector<TopWorker> workers, TopRouter router, Duration timeout)
    : nodes_(std::move(nodes)),
      node_names_(std::move(node_names)),
      workers_(std::move(workers)),
      router_(std::move(router)),
      timeout_(timeout) {}

Snapshot Sampler::Take() {
  Snapshot snapshot;
  snapshot.at = SteadyClock::Get().Now();
  snapshot.unix_seconds = Seconds(std::chrono::system_clock::now().time_since_epoch());
  snapshot.workers.resize(workers_.size());
  // One that hangs makes nobody else late.
  std::vector<std::thread> threads;
  for (size_t i = 0; i < workers_.size(); ++i) {
    threads.emplace_back([this, i, out = &snapshot.workers[i]] {
      out->name = workers_[i].name;
      out->address = workers_[i].address;
      auto load = workers_[i].source->Ask(timeout_);
      out->status = load.status();
      if (load.ok()) out->load = *std::move(load);
    });
  }
  if (router_.source != nullptr) {
    snapshot.router.emplace();
    threads.emplace_back([this, out = &*snapshot.router] {
      out->address = router_.address;
      auto view = router_.source->Ask(timeout_);
      out->status = view.status();
      if (view.ok()) out->view = *std::move(view);
    });
  }
  snapshot.nodes = AskNodes();
  for (std::thread& thread : threads) thread.join();
  return snapshot;
}

std::vector<SurveyedNode> Sampler::AskNodes() {
  if (node_names_.empty()) return {};
  std::vector<std::string> addresses;
  for (const auto& [address, name] : node_names_) addresses.push_back(address);
  std::vector<SurveyedNode> nodes;
  if (auto survey = TakeSurvey(nodes_.get(), addresses, /*stats=*/true); survey.ok()) {
    nodes = std::move(survey->nodes);
  } else {
    for (const std::string& address : addresses) {
      nodes.push_back(
          {.address = address, .node_id = {}, .status = survey.status(), .view = {}, .stats = {}});
    }
  }
  for (SurveyedNode& node : nodes) {
    const auto name = node_names_.find(node.address);
    if (node.node_id.empty() && name != node_names_.end()) node.node_id = name->second;
    if (node.status.ok() && !node.stats) {
      node.status = Errorf(StatusCode::kUnavailable, "it does not say what it stores");
    }
  }
  return nodes;
}

}  // namespace cairn::cli
