#pragma once
// Follows all members of a cluster: who they are, and a thread for each.

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cairn/client/cluster_events.h"
#include "clients/cpp/src/core/member_follower.h"
#include "common/concurrency/mutex.h"

namespace cairn::client {

// The list of members whose events are followed. One thread at a time.
class MemberRoster {
 public:
  explicit MemberRoster(std::vector<std::string> seeds) : seeds_(std::move(seeds)) {}

  // Addresses to ask for the list, in this order, until one answers: members first, then seeds.
  std::vector<std::string> ToAsk() const;
  struct Change {
    std::map<std::string, std::string> added = {};  // Addresses, by id.
    std::vector<std::string> removed = {};
  };
  // A node has answered. A member that it does not name stays as long as its events come: they say
  // more than the view of one other node. `works`: whether they do, by id.
  Change Take(const ClusterMembers& view, const std::string& asked,
              const std::map<std::string, bool>& works);
  // The node at `asked` knows no clusters: it is followed under its address.
  Change TakeAlone(const std::string& asked);

 private:
  const std::vector<std::string> seeds_;
  std::map<std::string, std::string> members_;  // Addresses, by id.
};

// As ClusterEvents.
class ClusterWatcher final : public ClusterEvents {
 public:
  // `whole`: a watch brings all events of a node.
  ClusterWatcher(std::unique_ptr<ClusterTransport> transport, std::vector<std::string> seeds,
                 const ClusterWatchOptions& options, bool whole);
  ~ClusterWatcher() override;

  Result<std::optional<MemberEvent>> Next(Duration wait) override;
  void Cancel() override;
  std::vector<std::string> members() const override;

 private:
  struct Followed {
    bool ending = false;
    bool works = false;
    std::string address;
    std::thread thread;
  };

  void RunList();
  void RunMember(const std::string& id, const std::shared_ptr<MemberFollower>& follower);
  void Apply(const MemberRoster::Change& change);
  // False: the watcher ends, or the member does.
  bool Hand(const std::string& id, std::vector<MemberEvent>* events);
  bool Ends(const std::string& id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ClusterWatchOptions options_;
  const bool whole_;
  const std::unique_ptr<ClusterTransport> transport_;
  const Clock& clock_ = SteadyClock::Get();
  MemberRoster roster_;  // Used by the thread of the list.
  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<MemberEvent> events_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Followed> followed_ ABSL_GUARDED_BY(mu_);
  std::thread list_;
};

}  // namespace cairn::client
