#pragma once
// The events of a cluster as Python needs them: closed at any time, useless in forks.

#include <sys/types.h>

#include <memory>
#include <optional>

#include "cairn/client/cluster_events.h"
#include "common/concurrency/mutex.h"

namespace cairn::python {

// Thread-safe.
class ClusterWatch {
 public:
  static Result<std::shared_ptr<ClusterWatch>> Make(const client::ConnectOptions& connection,
                                                    const client::ClusterWatchOptions& options);
  ~ClusterWatch() { Close(); }

  // Waits for at most `wait`; one thread at a time. CANCELLED: it was closed.
  // FAILED_PRECONDITION: another thread waits, or this is a forked process.
  Result<std::optional<client::MemberEvent>> Next(Duration wait);
  std::vector<std::string> members();
  // Ends a Next that waits. May be repeated.
  void Close();

 private:
  explicit ClusterWatch(std::unique_ptr<client::ClusterEvents> events);

  const pid_t process_;
  Mutex mu_;
  CondVar idle_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<client::ClusterEvents> events_;  // Null once closed and read by nobody.
};

}  // namespace cairn::python
