#include "clients/cpp/src/core/cluster_watcher.h"

#include <algorithm>

namespace cairn::client {
namespace {

constexpr Duration kWatchStep = std::chrono::milliseconds(100);
constexpr Duration kAskLimit = std::chrono::seconds(1);
constexpr Duration kAskAgain = std::chrono::milliseconds(200);  // While nobody has answered.

}  // namespace

std::vector<std::string> MemberRoster::ToAsk() const {
  std::vector<std::string> addresses;
  const auto add = [&](const std::string& address) {
    if (std::find(addresses.begin(), addresses.end(), address) == addresses.end()) {
      addresses.push_back(address);
    }
  };
  for (const auto& [id, address] : members_) add(address);
  for (const std::string& seed : seeds_) add(seed);
  return addresses;
}

MemberRoster::Change MemberRoster::Take(const ClusterMembers& view, const std::string& asked,
                                        const std::map<std::string, bool>& works) {
  std::map<std::string, std::string> named;
  const auto name = [&](const ClusterMember& member, const std::string& address) {
    if (!member.leaving) named[member.node_id.empty() ? address : member.node_id] = address;
  };
  // A node that is alone has no address for others.
  name(view.self, view.self.address.empty() ? asked : view.self.address);
  for (const ClusterMember& member : view.members) name(member, member.address);
  Change change;
  for (const auto& [id, address] : members_) {
    const auto it = named.find(id);
    if (it != named.end() && it->second == address) continue;
    const auto working = works.find(id);
    if (it == named.end() && working != works.end() && working->second) continue;
    change.removed.push_back(id);
  }
  for (const std::string& id : change.removed) members_.erase(id);
  for (const auto& [id, address] : named) {
    if (members_.try_emplace(id, address).second) change.added.emplace(id, address);
  }
  return change;
}

MemberRoster::Change MemberRoster::TakeAlone(const std::string& asked) {
  Change change;
  const bool known = std::any_of(members_.begin(), members_.end(),
                                 [&](const auto& entry) { return entry.second == asked; });
  if (!known && members_.try_emplace(asked, asked).second) change.added.emplace(asked, asked);
  return change;
}

ClusterWatcher::ClusterWatcher(std::unique_ptr<ClusterTransport> transport,
                               std::vector<std::string> seeds, const ClusterWatchOptions& options,
                               bool whole)
    : options_(options),
      whole_(whole && !options.fingerprint),
      transport_(std::move(transport)),
      roster_(std::move(seeds)),
      list_([this] { RunList(); }) {}

ClusterWatcher::~ClusterWatcher() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  list_.join();
  std::map<std::string, Followed> followed;
  {
    MutexLock lock(mu_);
    followed.swap(followed_);
  }
  for (auto& [id, member] : followed) member.thread.join();
}

void ClusterWatcher::RunList() {
  for (;;) {
    std::map<std::string, bool> works;
    {
      MutexLock lock(mu_);
      for (const auto& [id, member] : followed_) works[id] = member.works;
    }
    bool answered = false;
    for (const std::string& address : roster_.ToAsk()) {
      const auto view = transport_->Members(address, kAskLimit);
      const bool alone = view.status().code() == StatusCode::kUnimplemented;
      if (view.ok()) Apply(roster_.Take(*view, address, works));
      if (alone) Apply(roster_.TakeAlone(address));
      answered |= view.ok() || alone;
      if (view.ok()) break;
      MutexLock lock(mu_);
      if (stopping_) return;
    }
    const TimePoint next = clock_.Now() + (answered ? options_.refresh : kAskAgain);
    MutexLock lock(mu_);
    if (changed_.WaitUntil(mu_, clock_, next,
                           [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; })) {
      return;
    }
  }
}

void ClusterWatcher::Apply(const MemberRoster::Change& change) {
  for (const std::string& id : change.removed) {
    std::thread thread;
    {
      MutexLock lock(mu_);
      Followed& member = followed_[id];
      member.ending = true;
      thread = std::move(member.thread);
      changed_.NotifyAll();
    }
    thread.join();
    MutexLock lock(mu_);
    followed_.erase(id);
  }
  for (const auto& [id, address] : change.added) {
    auto follower = std::make_shared<MemberFollower>(
        id, address,
        MemberFollower::Options{.fingerprint = options_.fingerprint,
                                .whole = whole_,
                                .lost_after = options_.lost_after},
        transport_.get(), &clock_);
    MutexLock lock(mu_);
    Followed& member = followed_[id];
    member.address = address;
    member.thread = std::thread([this, id = id, follower] { RunMember(id, follower); });
  }
}

bool ClusterWatcher::Ends(const std::string& id) const {
  if (stopping_) return true;
  const auto it = followed_.find(id);
  return it == followed_.end() || it->second.ending;
}

bool ClusterWatcher::Hand(const std::string& id, std::vector<MemberEvent>* events) {
  MutexLock lock(mu_);
  for (MemberEvent& event : *events) {
    changed_.Wait(mu_, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return Ends(id) || events_.size() < options_.queue;
    });
    if (Ends(id)) return false;
    events_.push_back(std::move(event));
  }
  if (!events->empty()) changed_.NotifyAll();
  events->clear();
  return !Ends(id);
}

void ClusterWatcher::RunMember(const std::string& id,
                               const std::shared_ptr<MemberFollower>& follower) {
  std::vector<MemberEvent> events;
  do {
    events.clear();
    const bool more = follower->Step(kWatchStep, &events);
    MutexLock lock(mu_);
    const auto it = followed_.find(id);
    if (it != followed_.end()) it->second.works = follower->works();
    if (more || !events.empty()) continue;
    const TimePoint next = std::min(follower->resume_at(), clock_.Now() + kWatchStep);
    changed_.WaitUntil(mu_, clock_, next,
                       [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return Ends(id); });
  } while (Hand(id, &events));
  events.clear();
  follower->End(&events);
  MutexLock lock(mu_);
  // One more than the bound: whoever reads must hear of it.
  for (MemberEvent& event : events) events_.push_back(std::move(event));
  changed_.NotifyAll();
}

Result<std::optional<MemberEvent>> ClusterWatcher::Next(Duration wait) {
  MutexLock lock(mu_);
  changed_.WaitUntil(mu_, clock_.Now() + wait, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return cancelled_ || !events_.empty();
  });
  if (cancelled_) return Errorf(StatusCode::kCancelled, "watch of the cluster: cancelled");
  if (events_.empty()) return std::optional<MemberEvent>();
  std::optional<MemberEvent> event = std::move(events_.front());
  events_.pop_front();
  // Those that wait for room.
  if (events_.size() + 1 >= options_.queue) changed_.NotifyAll();
  return event;
}

void ClusterWatcher::Cancel() {
  MutexLock lock(mu_);
  cancelled_ = true;
  changed_.NotifyAll();
}

std::vector<std::string> ClusterWatcher::members() const {
  MutexLock lock(mu_);
  std::vector<std::string> ids;
  for (const auto& [id, member] : followed_) ids.push_back(id);
  return ids;
}

std::unique_ptr<ClusterEvents> WatchCluster(std::unique_ptr<ClusterTransport> transport,
                                            std::vector<std::string> seeds,
                                            const ClusterWatchOptions& options) {
  return std::make_unique<ClusterWatcher>(std::move(transport), std::move(seeds), options,
                                          /*whole=*/true);
}

}  // namespace cairn::client
