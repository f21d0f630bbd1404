#pragma once
// The API key that engines get from this router, from a file that may change.

#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"

namespace cairn::router {

// Thread-safe.
class KeyFile {
 public:
  // FAILED_PRECONDITION naming `field`: the file cannot be read, or is not one line of text.
  static Result<std::unique_ptr<KeyFile>> Open(const std::string& path, const std::string& field,
                                               const Clock* clock);

  // The key of now, or of at most a second ago. If the file has become wrong, the last key that was
  // right.
  std::string Get();
  // The file has become wrong. Looks at it as Get does.
  bool stale();

 private:
  KeyFile(std::string path, std::string field, const Clock* clock)
      : path_(std::move(path)), field_(std::move(field)), clock_(clock) {}
  Result<std::string> Read() const;
  void ReadAgain() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  const std::string field_;
  const Clock* const clock_;
  Mutex mu_;
  std::string key_ ABSL_GUARDED_BY(mu_);
  TimePoint read_at_ ABSL_GUARDED_BY(mu_);
  bool stale_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::router
