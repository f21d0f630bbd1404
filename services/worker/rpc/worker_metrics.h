#pragma once
// The metrics of a worker: cairn_worker_*. docs/operate/metrics-worker.md says what each means.

#include "common/metrics/metrics.h"
#include "services/worker/engine/worker_engine.h"

namespace cairn::worker {

// Thread-safe.
class WorkerMetrics {
 public:
  // Totals are read from the engine at each scrape; it must live until the last scrape.
  WorkerMetrics(metrics::Registry& registry, const WorkerEngine& engine);

  // Counts a finished request's times.
  void Observe(const GenerateSummary& summary) const;

 private:
  metrics::Histogram request_;
  metrics::Histogram token_;
  metrics::Histogram ttft_cold_;
  metrics::Histogram ttft_warm_;
  metrics::Histogram queue_;
  metrics::Histogram fetch_;
  metrics::Histogram match_;
};

}  // namespace cairn::worker
