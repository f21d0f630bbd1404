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
  constexpr std::string_view kNeeds[kLimits] = {"all", "tail", "one", "none"};
  for (size_t i = 0; i < kLimits; ++i) {
    limits_[i] = registry->AddCounter(
        "cairn_pool_limits_total",
        "Matches over pools, by what they need of the pool that has not enough for a longer "
        "length. all: every block, as full attention; tail: the last blocks, as a window; one: one "
        "block, as a state; none: no pool is in the way.",
        {{"needs", std::string(kNeeds[i])}});
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

void LookupMetrics::CountJoint(const MatchResult& result, const JointQuestion& question,
                               uint64_t asked_tokens) const {
  const uint64_t most =
      question.most_tokens == 0 ? asked_tokens : std::min(question.most_tokens, asked_tokens);
  const auto restorable = static_cast<double>(result.joint.restorable_tokens);
  // Tokens lie in all pools at once: they count where most of their bytes come from.
  size_t place = kNone;
  uint64_t bytes = 0;
  for (const TierRun& run : result.tiers) {
    const size_t from = run.tier ? static_cast<size_t>(*run.tier) : kSource;
    blocks_[from].Add(run.blocks);
    if (place == kNone || run.bytes > bytes) {
      place = from;
      bytes = run.bytes;
    }
  }
  if (place != kNone) tokens_[place].Add(restorable);
  tokens_[kNone].Add(static_cast<double>(most) - restorable);
  prefix_tokens_.Observe(restorable);
  Limit limit = kNoPool;
  for (const PoolNeed& need : question.pools) {
    if (need.pool != result.joint.limiting_pool) continue;
    limit = need.tail_tokens == 0 ? kAll : need.tail_tokens == 1 ? kOne : kTail;
  }
  limits_[limit].Add(1);
}

}  // namespace cairn::cache
