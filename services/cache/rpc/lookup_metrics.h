#pragma once
// What lookups found: the metrics that say whether the cache is worth its memory.

#include "common/metrics/metrics.h"
#include "services/cache/engine/cache_engine.h"

namespace cairn::cache {

// Thread-safe.
class LookupMetrics {
 public:
  explicit LookupMetrics(metrics::Registry* registry);
  // One answered Match of `asked` blocks.
  void Count(const MatchResult& result, size_t asked, uint32_t block_tokens) const;

 private:
  metrics::Counter blocks_[kTierCount + 1], tokens_[kTierCount + 1];  // By TierKind; last: none.
  metrics::Histogram prefix_tokens_;
};

}  // namespace cairn::cache
