#pragma once
// The terms of tenants, as settings say them.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cairn/common/status.h"

namespace cairn {

// The terms of one tenant, as the operator sets them.
struct TenantTerms {
  double weight = 1;  // More than 0: its share next to the others' weights.
  // Priorities up to this one count before other tenants' requests. Greater ones only order the
  // tenant's own requests. So nobody gains from priorities that the operator has not given.
  int32_t max_priority = 0;
};

// "chat=2" and "batch=0.5:-1" are a tenant, its weight, and the greatest priority that counts
// before other tenants' requests, from `least` to `greatest`. Errors name `setting`.
Result<std::map<std::string, TenantTerms>> ParseTenantTerms(const std::vector<std::string>& entries,
                                                            const std::string& setting,
                                                            int32_t least, int32_t greatest);

}  // namespace cairn
