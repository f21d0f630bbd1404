#pragma once
// The metrics of the same-node path.

#include <array>

#include "common/metrics/metrics.h"
#include "services/cache/serve/local/local_server_session.h"
#include "services/cache/serve/local/local_stats.h"
#include "services/cache/serve/rpc/lookup_metrics.h"

namespace cairn::cache {

// Counts answers. Its matches count as those of gRPC do. Thread-safe.
class LocalMetrics final : public LocalObserver {
 public:
  explicit LocalMetrics(metrics::Registry* registry);
  void OnAnswer(shm::Op op, Duration took) override;
  void OnMatch(const MatchResult& result, size_t asked, uint32_t block_tokens) override;
  void OnMatchPools(const MatchResult& result, const JointQuestion& question,
                    uint64_t asked_tokens) override;

 private:
  const LookupMetrics lookups_;
  std::array<metrics::Histogram, shm::kLastOp + 1> seconds_;  // By shm::Op.
};

// `stats` outlives the registry's scrapes; nullptr: all are 0.
void ExportLocal(const LocalStats* stats, metrics::Registry* registry);

}  // namespace cairn::cache
