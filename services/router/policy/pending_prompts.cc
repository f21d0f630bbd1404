#include "services/router/policy/pending_prompts.h"

#include <algorithm>

namespace cairn::router {

void PendingPrompts::Add(const Claim& claim, double seconds) {
  Sum& sum = pending_[claim];
  sum.seconds += seconds;
  ++sum.prompts;
}

void PendingPrompts::Remove(const Claim& claim, double seconds) {
  const auto found = pending_.find(claim);
  if (found == pending_.end()) return;
  found->second.seconds = std::max(0.0, found->second.seconds - seconds);
  // The count decides: sums of numbers that are no whole ones drift.
  if (--found->second.prompts == 0) pending_.erase(found);
}

double PendingPrompts::ShareOf(double wait, const Claim& claim, double seconds,
                               const WeightOf& weight) const {
  double all = 0, before = 0, own = 0;
  std::map<std::string_view, double> others;
  for (const auto& [one, sum] : pending_) {
    if (one.counted < claim.counted) continue;  // `wait` does not have them.
    all += sum.seconds;
    if (one.tenant == claim.tenant) {
      own += one.priority >= claim.priority ? sum.seconds : 0;
    } else if (one.counted > claim.counted) {
      before += sum.seconds;
    } else {
      others[one.tenant] += sum.seconds;
    }
  }
  if (all <= 0) return wait;
  // The worker may report more than this router knows of, or less, because some of it is done: its
  // owners are taken to be in the same proportion.
  const double scale = wait / all;
  const double mine = own * scale + seconds;
  const double own_weight = weight(claim.tenant);
  double share = (before + own) * scale;
  for (const auto& [tenant, theirs] : others) {
    share += std::min(theirs * scale, mine * weight(tenant) / own_weight);
  }
  return std::min(wait, share);
}

}  // namespace cairn::router
