#pragma once
// The metrics of the same-node path.

#include "common/metrics/metrics.h"
#include "services/cache/serve/local/local_stats.h"

namespace cairn::cache {

// `stats` outlives the registry's scrapes; nullptr: all are 0.
void ExportLocal(const LocalStats* stats, metrics::Registry* registry);

}  // namespace cairn::cache
