#pragma once
// A running router: its engine, its links to workers and nodes, its ports; and its orderly end.

#include <memory>

#include "common/metrics/metrics.h"
#include "common/service/service.h"
#include "services/router/rpc/router_config.h"

namespace cairn::router {

// `config` must have passed the checks of its schema. Drain lets accepted requests end within
// config.drain. Threads: as service::Service.
std::unique_ptr<service::Service> MakeRouter(const RouterConfig& config,
                                             metrics::Registry* registry, tracing::Tracer* tracer);

}  // namespace cairn::router
