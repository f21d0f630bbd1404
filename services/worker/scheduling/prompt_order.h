#pragma once
// Which prompt goes first: priority, then the tenant that was served least, then the least prefill
// left, with ageing.

#include <compare>
#include <cstdint>

#include "cairn/common/clock.h"
#include "common/tenants/tenant_accounts.h"
#include "services/worker/scheduling/scheduler.h"

namespace cairn::worker {

// Smaller goes first.
struct PromptRank {
  int32_t priority = 0;      // Negated; as far as it counts before other tenants.
  double served = 0;         // The service of the tenant.
  int32_t own_priority = 0;  // Negated; as the request says.
  double seconds = 0;        // Seconds of prefill left, less the gain by waiting.

  friend auto operator<=>(const PromptRank&, const PromptRank&) = default;
};

// Thread-safe.
class PromptOrder {
 public:
  // Least work first (SRPT) has the best mean, and ageing keeps long prompts from waiting forever:
  // for each second waited a prompt counts as this much shorter.
  static constexpr double kAgeing = 0.1;

  // `accounts` must outlive it.
  explicit PromptOrder(const TenantAccounts& accounts) : accounts_(accounts) {}

  // `tokens_per_second`: of prefill; 0: not known, and then the oldest prompt goes first.
  PromptRank Rank(const PromptClaim& claim, double tokens_per_second, TimePoint now) const {
    const TenantAccounts::Standing tenant = accounts_.StandingOf(claim.tenant);
    PromptRank rank;
    rank.priority = -(claim.priority < tenant.max_priority ? claim.priority : tenant.max_priority);
    rank.served = tenant.served;
    rank.own_priority = -claim.priority;
    if (tokens_per_second > 0) {
      rank.seconds = static_cast<double>(claim.prefill_tokens) / tokens_per_second;
    }
    rank.seconds -= kAgeing * Seconds(now - claim.arrived);
    return rank;
  }

 private:
  const TenantAccounts& accounts_;
};

}  // namespace cairn::worker
