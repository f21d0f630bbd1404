#pragma once
// Numbers of a node's part in a cluster, for Prometheus.

#include "common/membership/discovery.h"
#include "common/metrics/metrics.h"
#include "services/cache/cluster/cluster.h"

namespace cairn::cache {

// Both outlive the registry.
void ExportCluster(Cluster* cluster, membership::Discovery* discovery, metrics::Registry* registry);

}  // namespace cairn::cache
