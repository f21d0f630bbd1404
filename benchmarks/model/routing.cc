#include "benchmarks/model/routing.h"

#include <algorithm>
#include <vector>

namespace cairn::model {

size_t CostRule(const ClusterView& cluster, std::mt19937_64& random) {
  // Beyond these the queueing formula says nothing.
  constexpr double kMostUse = 0.97, kMostDelayed = 50;
  const double idle = 1 - std::min(cluster.utilization, kMostUse);
  const double arrivals = cluster.arrivals_per_second / static_cast<double>(cluster.workers.size());
  std::vector<size_t> best;
  double least = 0;
  for (size_t i = 0; i < cluster.workers.size(); ++i) {
    const WorkerView& one = cluster.workers[i];
    const double delayed =
        std::min(kMostDelayed, arrivals * (one.queue_seconds + one.work_seconds) / idle);
    const double cost =
        std::max(one.queue_seconds, one.fetch_seconds) + one.work_seconds * (1 + delayed);
    if (best.empty() || cost < least) {
      best.clear();
      least = cost;
    }
    if (cost == least) best.push_back(i);
  }
  return best[std::uniform_int_distribution<size_t>(0, best.size() - 1)(random)];
}

}  // namespace cairn::model
