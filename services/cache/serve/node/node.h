#pragma once
// A running cache node: tiers, engine, services, ports; and its orderly end.

#include <memory>

#include "common/metrics/metrics.h"
#include "common/service/service.h"
#include "services/cache/serve/node/node_config.h"

namespace cairn::cache {

// `config` must have passed the checks of its schema. Drain refuses new writes, tells clients, lets
// running calls end, writes committed blocks to disk and closes the ports. Its status is that of
// the last flush: not OK means that something committed is not on disk. Threads: as
// service::Service.
std::unique_ptr<service::Service> MakeNode(const NodeConfig& config, metrics::Registry* registry,
                                           tracing::Tracer* tracer);

}  // namespace cairn::cache
