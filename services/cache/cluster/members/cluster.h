#pragma once
// This node as a member of a cluster: puts together who the members are, what they are told, what
// they ask, and what they are asked.
//
//   discovery ─► MemberList ─► OwnerMap ─┬─► Directory           whose entries count
//                                        ├─► Announcer           who is told what the engine stores
//                                        └─► PeerSource          who is asked what it lacks
//   engine's events ─► WaymarkFollower ─► Announcer ─► AnnouncementSender ─► PeerLinks
//   other members ─► PeerHost ─► engine, Directory
//
// No code here knows gRPC, threads or real time: the owner calls Tick, and the links call back.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/concurrency/executor.h"
#include "services/cache/cluster/members/announcement_sender.h"
#include "services/cache/cluster/members/bump_exchange.h"
#include "services/cache/cluster/members/member_list.h"
#include "services/cache/cluster/members/peer_host.h"
#include "services/cache/cluster/members/waymark_follower.h"
#include "services/cache/cluster/peer/locator.h"
#include "services/cache/cluster/peer/peer_source.h"

namespace cairn::cache {

// The state of the cluster, for operators.
struct ClusterView {
  PeerHello self;
  struct Row {
    LiveMember member;
    Duration since_heard{0};
    bool same_view = false;  // It sees the same members.
    bool same_bumps = false;
    bool skipped = false;     // Calls to it fail at present, or it sent wrong bytes.
    bool sent_wrong = false;  // It is skipped because it sent wrong bytes several times.
  };
  std::vector<Row> members;  // Without this node.
  std::vector<AbsentMember> absent;
  std::optional<PeerHello> replaced_by;
  uint64_t view_digest = 0;
  uint64_t waymarks = 0;  // Waymarks that this node has.
  uint64_t directory_entries = 0, directory_bytes = 0, directory_forgotten = 0;
  uint64_t announcements = 0, failed_announcements = 0;
  size_t announcing = 0;      // Members that were not told everything yet.
  uint64_t found_blocks = 0;  // Keys that were asked for and that peers said they have.
  uint64_t read_blocks = 0, read_bytes = 0, failed_reads = 0, busy_reads = 0;
  uint64_t wrong_reads = 0;  // Reads in which a member sent wrong bytes.
  // As PeerSource::Counts.
  uint64_t moved_blocks = 0, moved_bytes = 0, failed_moves = 0, wrong_moves = 0;
  uint64_t sent_bytes = 0, busy_answers = 0;
  uint64_t bump_exchanges = 0;
};

// Thread-safe.
class Cluster {
 public:
  struct Options {
    PeerHello self;
    Directory::Options directory;
    PeerSource::Options source;  // `self` is filled in.
    MemberList::Options members;
    Announcer::Options announcer;
  };
  // All outlive it. The links, and the executor's tasks, let go of their callbacks before it is
  // destroyed.
  struct Dependencies {
    PeerLinks* links = nullptr;
    Timers* timers = nullptr;
    Executor* executor = nullptr;
    const Clock* clock = nullptr;
    BlockFetcher* fetcher = nullptr;  // As PeerSource's.
  };
  Cluster(Options options, const Dependencies& dependencies);

  // For the engine, which is made after it.
  BlockSource* source() { return &source_; }
  // Until Detach, which comes before the engine goes. The engine has a side for peers.
  void Attach(CacheEngine* engine);
  void Detach();

  void OnView(const membership::View& view);
  // Greets, announces, follows the engine. Some ten times a second or more often.
  void Tick();
  // Members are told that this node leaves, and do not count on it any more.
  void Leave();
  // It has learned what a starting node must know of bumps, or nobody is there to tell it.
  bool settled() const;

  // How much other members hold of a prompt. `done` runs once, at `deadline` at the latest: inside
  // the call, or on another thread. A namespace that this node does not know is nowhere.
  void Locate(const Digest& fingerprint, std::span<const BlockKey> keys, TimePoint deadline,
              Locator::Done done);

  PeerHost& host() { return host_; }
  PeerHello self() const;
  ClusterView view() const;
  // Memory of it, which cluster.memory bounds: the directory most of all.
  uint64_t bytes() const;

 private:
  PeerSource::Known KnownOf(const Digest& fingerprint) const;
  void Greet();
  void Answered(const std::string& address, uint64_t asked_at,
                const Result<PeerHelloAnswer>& answer);
  // Tells everybody who the members are, if that has changed.
  void UpdateMembers();

  const Options options_;
  PeerLinks& links_;
  const Clock& clock_;
  MemberList members_;
  Directory directory_;
  Announcer announcer_;
  AnnouncementSender sender_;
  PeerSource source_;
  Locator locator_;
  BumpExchange bumps_;
  PeerHost host_;
  CacheEngine* engine_ = nullptr;
  PeerEngine* blocks_ = nullptr;
  std::optional<WaymarkFollower> follower_;
  int ticks_ = 0;  // Used by the thread that ticks.
  std::atomic<uint64_t> follower_bytes_{0};

  mutable Mutex mu_;
  bool leaving_ ABSL_GUARDED_BY(mu_) = false;
  bool attached_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<LiveMember> live_ ABSL_GUARDED_BY(mu_);
  uint64_t members_version_ ABSL_GUARDED_BY(mu_) = 0;  // The version of `live_`.
  uint64_t view_digest_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t bumps_digest_ ABSL_GUARDED_BY(mu_) = 0;  // When it was last looked at.
  bool equal_once_ ABSL_GUARDED_BY(mu_) = false;    // A member was found that knows the same bumps.
};

}  // namespace cairn::cache
