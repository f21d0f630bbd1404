#pragma once
// Whether the caller of a stream that lives long still has the rights with which it began.

#include <memory>

#include "cairn/common/status.h"
#include "common/auth/access.h"

namespace cairn::rpc {

// One thread at a time.
class RightsWatch {
 public:
  // Looks when the policy is another one than at the last look; until the first look it trusts the
  // rights that `caller` was given. `access`, `caller`: nullptr: nothing ever changes.
  bool Changed(auth::Access* access, const std::shared_ptr<const auth::KnownCaller>& caller) {
    if (access == nullptr || caller == nullptr) return false;
    const uint64_t version = access->version();
    if (version == seen_) return false;
    seen_ = version;
    // Operators have no rule.
    return !caller->is_operator && !(access->Know(caller->identity)->rights == caller->rights);
  }

 private:
  uint64_t seen_ = 0;
};

inline Status RightsHaveChanged() {
  return Errorf(StatusCode::kUnavailable,
                "the policy gives this caller other rights now, call again");
}

}  // namespace cairn::rpc
