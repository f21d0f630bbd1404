#include "services/cache/serve/rpc/lookup_metrics.h"

namespace cairn::cache {

LookupMetrics::LookupMetrics(metrics::Registry* registry) {
  for (size_t i = 0; i < kPlaces; ++i) {
    const metrics::Labels labels = {{"tier", i == kSource ? "source"
                                             : i == kNone ? "none"
                                                          : std::string(Name(TierKind(i)))}};
    blocks_[i] = registry->AddCounter(
        "cairn_lookup_blocks_total",
        "Blocks that Match asked for, by the tier that had them. source: another place, none: "
        "a miss.",
        labels);
    tokens_[i] = registry->AddCounter(
        "cairn_lookup_tokens_total",
        "Tokens that Match asked for, by the tier that had them. source: another place, none: "
        "a miss.",
        labels);
  }
  std::vector<double> buckets = {0};
  for (double edge = 16; edge <= 131072; edge *= 2) buckets.push_back(edge);
  prefix_tokens_ = registry->AddHistogram("cairn_matched_prefix_tokens",
                                          "Tokens that one Match found.", buckets);
}

void LookupMetrics::Count(const MatchResult& result, size_t asked, uint32_t block_tokens) const {
  for (const TierRun& run : result.tiers) {
    const size_t place = run.tier ? static_cast<size_t>(*run.tier) : kSource;
    blocks_[place].Add(run.blocks);
    tokens_[place].Add(static_cast<double>(run.blocks) * block_tokens);
  }
  const auto missed = static_cast<double>(asked - std::min<size_t>(asked, result.matched_blocks));
  blocks_[kNone].Add(missed);
  tokens_[kNone].Add(missed * block_tokens);
  prefix_tokens_.Observe(static_cast<double>(result.matched_blocks) * block_tokens);
}

}  // namespace cairn::cache
