#pragma once
// The tenants of API keys: a file of lines `TENANT SHA256HEX`. The second word is the SHA-256 of an
// API key. The file has no keys, so a copy of it lets nobody in.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/hash.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"
#include "common/config/followed_file.h"

namespace cairn::router {

inline constexpr size_t kMaxKeyFileBytes = 1 << 20;
inline constexpr size_t kMaxTenantBytes = 128;

// At most 128 bytes of UTF-8 without spaces and control characters, as the worker demands.
bool IsTenant(std::string_view text);

struct ApiKey {
  std::string tenant;
  Digest digest;
};

// Empty lines, and those that begin with #, mean nothing. INVALID_ARGUMENT, which names the line.
Result<std::vector<ApiKey>> ParseApiKeys(std::string_view text);

// The tenant, or nullptr. Takes the same time for each key of its length, right or wrong, so that a
// caller learns nothing of the digests.
const std::string* FindTenant(const std::vector<ApiKey>& keys, std::string_view key);

// The file, read again when it has changed. Thread-safe.
class ApiKeyFile {
 public:
  // Errors name `field`.
  static Result<std::unique_ptr<ApiKeyFile>> Open(std::string path, const std::string& field,
                                                  const Clock* clock);

  // nullopt: no such key. A changed file that is wrong changes nothing, is logged, and is tried
  // again at each look.
  std::optional<std::string> TenantOf(std::string_view key);
  // The file could not be read, or has a wrong line: keys that its author has taken away are still
  // valid. Looks at the file as TenantOf does, also if nobody calls.
  bool stale();

 private:
  ApiKeyFile(std::string path, const Clock* clock)
      : clock_(clock), file_(std::move(path), clock->Now()) {}
  Result<std::vector<ApiKey>> Read() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void LookAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock* const clock_;
  Mutex mu_;
  config::FollowedFile file_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const std::vector<ApiKey>> keys_ ABSL_GUARDED_BY(mu_);
  bool stale_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::router
