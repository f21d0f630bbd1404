#pragma once
// The metrics of a router: cairn_router_*. docs/operate/metrics-router.md says what each means.

#include "common/metrics/metrics.h"
#include "services/router/engine/router_engine.h"
#include "services/router/http/http_edge.h"
#include "services/router/picker/picker_stats.h"
#include "services/router/relay/prompt_reader.h"

namespace cairn::router {

// The objects that are read at each scrape; all must live until the last one.
struct ScrapedParts {
  const RouterEngine* engine = nullptr;
  const WorkerRegistry* registry = nullptr;
  const Dispatcher* dispatcher = nullptr;
  const PrefixIndex* index = nullptr;
  const PromptEncoder* encoder = nullptr;  // nullptr: there is no model's file.
  const PromptReader* prompts = nullptr;   // nullptr: the workers are Cairn's.
  bool follows_nodes = false;              // The index gets events of nodes.
};

void ExportRouter(const ScrapedParts& parts, metrics::Registry* registry);
void ExportHttp(const HttpEdge::Stats& stats, metrics::Sink& sink);
// `setting`: that names a file of keys. `stale`: it cannot be used, and the keys of before count.
void ExportKeyFile(const std::string& setting, bool stale, metrics::Sink& sink);
void ExportPicker(const PickerStats& stats, metrics::Sink& sink);
// For PickerEdge: seconds that a decision took.
std::function<void(double)> PickTime(metrics::Registry* registry);
// For HttpEdge: seconds that it took of a request before the router had it.
std::function<void(double)> AddedTime(metrics::Registry* registry);
// Counts the times of requests.
RouterEngine::Observers RouterTimes(metrics::Registry* registry);

}  // namespace cairn::router
