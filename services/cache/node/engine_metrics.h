#pragma once
// The engine's and the disk tier's own numbers, read at each scrape.

#include "common/metrics/metrics.h"
#include "services/cache/engine/cache_engine.h"

namespace cairn::cache {

class DiskTier;

// `engine` outlives the registry's last scrape.
void ExportEngine(const CacheEngine* engine, metrics::Registry* registry);
// As above.
void ExportDiskTier(const DiskTier* tier, metrics::Registry* registry);

}  // namespace cairn::cache
