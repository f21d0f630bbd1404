#pragma once
// What a request costs its tenant while it runs, in tokens: what it generates, and the pages that
// it holds.
//
//   a generated token      TenantAccounts::kGeneratedCost
//   all pages, a second    what the engine computes of prompts in a second
//
// So whoever holds all of the memory is charged as if it computed all of the time, and a request
// that keeps much memory for long is not cheap because it computes little (as the dominant share of
// Ghodsi et al., "Dominant Resource Fairness", NSDI 2011, but with the sum of both).

#include <cstdint>
#include <utility>

#include "cairn/common/clock.h"
#include "common/tenants/tenant_accounts.h"

namespace cairn::worker {

// Of one request. Not thread-safe.
class UsageMeter {
 public:
  // `generated`: tokens that were charged before.
  explicit UsageMeter(TimePoint now, uint64_t generated = 0) : read_(now), generated_(generated) {}

  // Tokens to charge for the time since the last reading, at whose end the request holds `pages` of
  // the engine's `all_pages` and has generated so many tokens. `tokens_per_second`: of prefill;
  // 0: not known, and then pages cost nothing.
  double Read(TimePoint now, uint64_t generated, int64_t pages, int64_t all_pages,
              double tokens_per_second) {
    const double seconds = Seconds(now - std::exchange(read_, now));
    const uint64_t more = generated - std::exchange(generated_, generated);
    const double share = static_cast<double>(pages) / static_cast<double>(all_pages);
    return TenantAccounts::kGeneratedCost * static_cast<double>(more) +
           share * seconds * tokens_per_second;
  }

 private:
  TimePoint read_;
  uint64_t generated_;
};

}  // namespace cairn::worker
