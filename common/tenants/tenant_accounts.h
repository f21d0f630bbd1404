#pragma once
// The service that each tenant has had, for an order that is fair between tenants.
//
// Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024):
// each tenant has a counter of tokens served, divided by its weight, and the least goes first. A
// tenant that comes back after a pause is lifted to the least counter of those that are there, so
// that nobody saves up a claim.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/concurrency/mutex.h"
#include "common/tenants/tenant_terms.h"

namespace cairn {

// Thread-safe.
class TenantAccounts {
 public:
  // The cost of a generated token, in prompt tokens that are computed.
  static constexpr double kGeneratedCost = 2;

  // `terms`: by name. Tenants that are not named have the defaults.
  explicit TenantAccounts(std::map<std::string, TenantTerms> terms = {}, size_t max_tenants = 1024);

  // A request of the tenant has arrived. The id is good until the last of the tenant's requests has
  // left. At most `max_tenants` idle tenants are remembered.
  uint32_t Enter(std::string_view tenant);
  // A request that has entered is over.
  void Leave(uint32_t id);

  // Counts tokens: computed ones of a prompt, or generated ones times kGeneratedCost. A negative
  // number corrects one before.
  void Charge(uint32_t id, double tokens);

  struct Standing {
    double served = 0;  // Tokens over weight. Only differences mean something.
    double weight = 1;
    int32_t max_priority = 0;
  };
  // The standing of a tenant that was forgotten: nothing served, on the usual terms.
  Standing StandingOf(uint32_t id) const;
  size_t size() const;

 private:
  struct Account {
    std::string name;
    TenantTerms terms;
    double served = 0;
    size_t requests = 0;  // Requests that have entered and not left.
  };
  void ForgetIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::map<std::string, TenantTerms> terms_;
  const size_t max_tenants_;
  mutable Mutex mu_;
  std::map<uint32_t, Account> accounts_ ABSL_GUARDED_BY(mu_);  // Oldest first.
  std::unordered_map<std::string, uint32_t> ids_ ABSL_GUARDED_BY(mu_);
  uint32_t next_id_ ABSL_GUARDED_BY(mu_) = 0;
  // Where a tenant begins if nobody else is there: the counter of the one that left last.
  double floor_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace cairn
