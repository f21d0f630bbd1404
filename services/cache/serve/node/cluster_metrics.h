#pragma once
// Numbers of a node's part in a cluster, for Prometheus.

#include "common/membership/discovery.h"
#include "common/metrics/metrics.h"
#include "services/cache/cluster/members/cluster.h"
#include "services/cache/store/state/memory_account.h"

namespace cairn::cache {

// All outlive the registry. Also measures the cluster's memory.
void ExportCluster(Cluster* cluster, membership::Discovery* discovery, MemoryAccount* account,
                   metrics::Registry* registry);

}  // namespace cairn::cache
