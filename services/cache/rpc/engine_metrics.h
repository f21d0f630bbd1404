#pragma once
// The engine's own numbers, read at each scrape.

#include "services/cache/engine/cache_engine.h"
#include "services/common/metrics/metrics.h"

namespace cairn::cache {

// `engine` outlives the registry's last scrape.
void ExportEngine(const CacheEngine* engine, metrics::Registry* registry);

}  // namespace cairn::cache
