#pragma once
// The rights that callers have now, by a policy in a file that others change.

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/auth/policy.h"
#include "common/concurrency/mutex.h"
#include "common/config/followed_file.h"

namespace cairn::auth {

// A caller with its rights. Does not change; threads may share it.
struct KnownCaller {
  Identity identity;
  Rights rights;
  bool is_operator = false;  // Has its rights without a rule.
};

// Thread-safe.
class Access {
 public:
  // Errors name `field` and the file. FAILED_PRECONDITION: it cannot be read. INVALID_ARGUMENT: as
  // Policy::Parse. `clock` must outlive it.
  static Result<std::unique_ptr<Access>> Open(const std::string& path, const std::string& field,
                                              const Clock* clock);

  std::shared_ptr<const KnownCaller> Know(const Identity& identity);
  // The same, of the caller that showed this certificate (PEM). `read` says who that is; it runs if
  // the certificate is not among those that are kept.
  std::shared_ptr<const KnownCaller> KnowCertificate(std::string_view certificate,
                                                     absl::FunctionRef<Identity()> read);
  // The limits that the policy of now gives the tenant.
  Limits LimitsOf(std::string_view tenant) const;
  // A caller that is the process's own user or root, who could read its memory as well: it may do
  // all but speak as another member of the cluster.
  static std::shared_ptr<const KnownCaller> KnowOperator(uid_t uid);

  // Reads the file again when it has changed, at most twice a second. A file that is wrong is
  // logged and counted, and what was right before stays.
  void Look();
  // Another number after each policy that was taken over.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

  struct Counts {
    uint64_t loads = 0;     // Policies that were taken over, the first one too.
    uint64_t failures = 0;  // Changes that were not.
    bool stale = false;     // The file cannot be used: what its author took away still holds.
    size_t rules = 0;
  };
  Counts counts() const;

 private:
  Access(const std::string& path, const Clock* clock) : clock_(clock), file_(path, clock->Now()) {}
  Result<std::shared_ptr<const Policy>> Read(const std::string& field) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);

  // Callers that are kept. Strangers cannot make it grow: it is emptied.
  static constexpr size_t kMaxKept = 4096;

  std::shared_ptr<const KnownCaller> KnowLocked(const Identity& identity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock* const clock_;
  std::atomic<uint64_t> version_{1};
  mutable Mutex mu_;
  config::FollowedFile file_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const Policy> policy_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<Identity, std::shared_ptr<const KnownCaller>> kept_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, std::shared_ptr<const KnownCaller>> by_certificate_
      ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::auth
