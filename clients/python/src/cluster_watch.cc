#include "clients/python/src/cluster_watch.h"

#include <unistd.h>

#include <utility>

namespace cairn::python {

ClusterWatch::ClusterWatch(std::unique_ptr<client::ClusterEvents> events)
    : process_(getpid()), events_(std::move(events)) {}

Result<std::shared_ptr<ClusterWatch>> ClusterWatch::Make(
    const client::ConnectOptions& connection, const client::ClusterWatchOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(auto events, client::WatchCluster(connection, options));
  return std::shared_ptr<ClusterWatch>(new ClusterWatch(std::move(events)),
                                       [](ClusterWatch* watch) {
                                         // Its threads are not in the fork.
                                         if (watch->process_ == getpid()) delete watch;
                                       });
}

Result<std::optional<client::MemberEvent>> ClusterWatch::Next(Duration wait) {
  if (getpid() != process_) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "the watch belongs to process {}, and this is its fork {}", process_, getpid());
  }
  {
    const MutexLock lock(mu_);
    if (closed_) return Errorf(StatusCode::kCancelled, "watch of the cluster: closed");
    if (reading_) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "watch of the cluster: another thread waits for its next event");
    }
    reading_ = true;
  }
  auto event = events_->Next(wait);
  const MutexLock lock(mu_);
  reading_ = false;
  idle_.NotifyAll();
  return event;
}

std::vector<std::string> ClusterWatch::members() {
  const MutexLock lock(mu_);
  return closed_ || getpid() != process_ ? std::vector<std::string>() : events_->members();
}

void ClusterWatch::Close() {
  if (getpid() != process_) return;
  std::unique_ptr<client::ClusterEvents> events;
  {
    const MutexLock lock(mu_);
    closed_ = true;
    if (events_ == nullptr) return;
    events_->Cancel();
    idle_.Wait(mu_, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !reading_; });
    events = std::move(events_);
  }
}

}  // namespace cairn::python
