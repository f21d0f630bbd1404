#pragma once
// A running worker: engine, connection to the cache node, gRPC port; and its orderly end.

#include <memory>

#include "common/metrics/metrics.h"
#include "common/service/service.h"
#include "services/worker/rpc/worker_config.h"

namespace cairn::worker {

// `config` must have passed the checks of its schema. Drain lets accepted requests and their pushes
// end within config.drain. Threads: as service::Service.
std::unique_ptr<service::Service> MakeWorker(const WorkerConfig& config,
                                             metrics::Registry* registry, tracing::Tracer* tracer);

}  // namespace cairn::worker
