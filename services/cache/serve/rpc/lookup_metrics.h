#pragma once
// The results of lookups: the metrics that say whether the cache is worth its memory.

#include "common/metrics/metrics.h"
#include "services/cache/store/engine/cache_engine.h"

namespace cairn::cache {

// Thread-safe.
class LookupMetrics {
 public:
  explicit LookupMetrics(metrics::Registry* registry);
  // One answered Match of `asked` blocks.
  void Count(const MatchResult& result, size_t asked, uint32_t block_tokens) const;

 private:
  // By TierKind; then located in a source; then none.
  static constexpr size_t kSource = kTierCount, kNone = kTierCount + 1, kPlaces = kTierCount + 2;
  metrics::Counter blocks_[kPlaces], tokens_[kPlaces];
  metrics::Histogram prefix_tokens_;
};

}  // namespace cairn::cache
