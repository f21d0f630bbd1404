#pragma once
// The engine's and the disk tier's own numbers, read at each scrape.

#include "common/metrics/metrics.h"
#include "services/cache/store/engine/cache_engine.h"

namespace cairn::cache {

class DiskTier;
class MemoryAccount;

// `engine` outlives the registry's last scrape.
void ExportEngine(const CacheEngine* engine, metrics::Registry* registry);
// The limits of the node for each kind of memory, and how much of it is in use. `account` and
// `engine`: as above.
void ExportMemory(MemoryAccount* account, const CacheEngine* engine, metrics::Registry* registry);
// As above.
void ExportDiskTier(const DiskTier* tier, metrics::Registry* registry);

}  // namespace cairn::cache
