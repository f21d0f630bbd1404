#pragma once
// The engine's and the disk tier's own numbers, read at each scrape.

#include "common/metrics/metrics.h"
#include "services/cache/store/engine/cache_engine.h"

namespace cairn::cache {

class DiskTier;
class MemoryAccount;

// `engine` outlives the registry's last scrape.
void ExportEngine(const CacheEngine* engine, metrics::Registry* registry);
// What the node may take of each kind of memory, and what it takes. `account` and `engine`: as
// above.
void ExportMemory(MemoryAccount* account, const CacheEngine* engine, metrics::Registry* registry);
// As above.
void ExportDiskTier(const DiskTier* tier, metrics::Registry* registry);

}  // namespace cairn::cache
