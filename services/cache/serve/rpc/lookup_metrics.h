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
  // One answered Match over pools, whose keys stand for `asked_tokens`.
  void CountJoint(const MatchResult& result, const JointQuestion& question,
                  uint64_t asked_tokens) const;

 private:
  // By TierKind; then located in a source; then none.
  static constexpr size_t kSource = kTierCount, kNone = kTierCount + 1, kPlaces = kTierCount + 2;
  // The need of a match over pools for the pool that is in its way; or none is.
  enum Limit : size_t { kAll, kTail, kOne, kNoPool, kLimits };
  metrics::Counter blocks_[kPlaces], tokens_[kPlaces];
  metrics::Counter limits_[kLimits];
  metrics::Histogram prefix_tokens_;
};

}  // namespace cairn::cache
