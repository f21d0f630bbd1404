#pragma once
// The answers of all processes at one moment, and the events since the moment before.

#include <optional>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "tools/cairn/cluster/survey.h"
#include "tools/cairn/generator/router_info.h"
#include "tools/cairn/generator/worker_load.h"

namespace cairn::cli {

struct SampledWorker {
  std::string name = {}, address = {};
  Status status = {};  // The status of its answer. Not OK: it is away, and what follows is empty.
  WorkerLoad load = {};
};

struct SampledRouter {
  std::string address = {};
  Status status = {};
  RouterView view = {};
};

struct Snapshot {
  double unix_seconds = 0;
  TimePoint at = {};
  std::vector<SurveyedNode> nodes = {};
  std::vector<SampledWorker> workers = {};
  std::optional<SampledRouter> router = {};
};

// The rates of one node, between two snapshots. Empty: it cannot be told, because one of them lacks
// the node or because it was started again in between.
struct NodeRates {
  double seconds = 0;
  uint64_t matched_tokens = 0, missed_tokens = 0;
  double to_workers = 0, from_workers = 0, from_peers = 0;  // Bytes per second.
};
// `before`: nullptr for the first snapshot.
std::optional<NodeRates> RatesOf(const Snapshot* before, const Snapshot& now,
                                 const SurveyedNode& node);

// The share of the tokens that were asked for. Empty: none was.
std::optional<double> HitShare(uint64_t matched, uint64_t missed);

}  // namespace cairn::cli
