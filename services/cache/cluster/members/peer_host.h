#pragma once
// Answers the calls of other members. It asks nobody in turn.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "services/cache/cluster/directory/directory.h"
#include "services/cache/cluster/members/call_rate.h"
#include "services/cache/cluster/members/member_list.h"
#include "services/cache/cluster/members/taker_table.h"
#include "services/cache/cluster/peer/peer_links.h"
#include "services/cache/store/engine/for_peers.h"

namespace cairn::cache {

// Thread-safe. Errors of all calls: PERMISSION_DENIED: the caller is of another cluster, or it is
// an older process of a member that has a newer one.
//
// A call names any id and process that its sender likes. So only a process that this node knows as
// a member has a session, and with it leases; all others share one session without leases.
class PeerHost {
 public:
  // All outlive it. `self` says what this process tells about itself now.
  // `tells_digests`: answers to exchanges of bumps carry the digest of all bumps.
  PeerHost(std::string cluster, bool tells_digests, std::function<PeerHello()> self,
           MemberList* members, Directory* directory, const Clock* clock)
      : cluster_(std::move(cluster)),
        tells_digests_(tells_digests),
        self_(std::move(self)),
        members_(*members),
        directory_(*directory),
        clock_(*clock) {}
  ~PeerHost() { Detach(); }
  // Until Detach. `engine` has a side for peers.
  void Attach(CacheEngine* engine);
  void Detach();
  // Whether a member has this id, as far as this node knows.
  bool Knows(const std::string& id) const {
    MutexLock lock(mu_);
    return known_.contains(id);
  }
  // The present members. Sessions of others end.
  void SetMembers(const std::vector<LiveMember>& members);

  PeerHelloAnswer Hello(const PeerHello& hello);
  // As Directory::Apply.
  Status Announce(const PeerCaller& caller, const Announcement& message);
  Result<FoundHolders> Find(const PeerCaller& caller, std::span<const WaymarkHash> waymarks);
  // The blocks in the tiers are leased for a few seconds, if the caller wants that, is a member,
  // and there is room for a lease.
  Result<PeerMatch> Match(const PeerCaller& caller, const PeerNamespace& ns,
                          std::span<const BlockKey> keys, PeerLease lease);
  // Blocks: waits for the disk. RESOURCE_EXHAUSTED: the caller comes too often.
  Result<BumpPage> ExchangeBumps(const PeerCaller& caller, const BumpPage& page);

  // A read of one block, from Begin to the end of its life.
  class Read {
   public:
    ~Read() { owner_.takers_.End(block_, taker_, taken_ && member_); }
    Read(const Read&) = delete;
    Read& operator=(const Read&) = delete;
    StoredBlockRead& block() { return *read_; }
    // All bytes were sent.
    void SetTaken() { taken_ = true; }
    // Another member was turned away since this read began, because two take the block.
    bool holds_up_others() const { return owner_.takers_.TurnedAway(block_); }

   private:
    friend class PeerHost;
    Read(PeerHost* owner, WaymarkHash block, TakerTable::Taker taker, bool member)
        : owner_(*owner), block_(block), taker_(taker), member_(member) {}
    PeerHost& owner_;
    const WaymarkHash block_;
    const TakerTable::Taker taker_;
    const bool member_;  // Others are told to ask it.
    std::unique_ptr<StoredBlockRead> read_;
    bool taken_ = false;
  };
  // nullptr: too many take the block now; `named` gets members that may have it, at most
  // PeerReadAnswer::kMostOthers.
  Result<std::unique_ptr<Read>> BeginRead(const PeerCaller& caller, const PeerNamespace& ns,
                                          const BlockKey& key, std::vector<std::string>* named);

  // Closes sessions of members that were silent for a while.
  void Tick();
  uint64_t sent_bytes() const { return sent_bytes_.load(std::memory_order_relaxed); }
  void CountSent(uint64_t bytes) { sent_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  // Sessions of members and of all others now.
  size_t sessions() const;
  // The memory for its records of members and of takers. The engine charges their sessions.
  uint64_t bytes() const;
  uint64_t busy_answers() const { return busy_.load(std::memory_order_relaxed); }

 private:
  struct Session {
    SessionId id = 0;
    TimePoint used{};
  };
  struct Member {
    uint64_t incarnation = 0;
    std::vector<uint64_t> older;  // Incarnations that have no place any more.
    std::optional<Session> session;
    CallRate bumps;
  };
  Status Check(const PeerCaller& caller) const;
  // FAILED_PRECONDITION: the caller knows other bumps.
  Status CheckBumps(const PeerNamespace& ns) const;
  struct Place {
    SessionId session = 0;
    bool member = false;  // As far as this node knows.
  };
  Result<Place> PlaceOf(const PeerCaller& caller);
  // The same process as that of the member with its id, as far as this node knows.
  bool IsMember(const PeerCaller& caller) const;
  Status CheckBumpRate(const PeerCaller& caller);

  const std::string cluster_;
  const bool tells_digests_;
  const std::function<PeerHello()> self_;
  MemberList& members_;
  Directory& directory_;
  const Clock& clock_;
  CacheEngine* engine_ = nullptr;
  PeerEngine* blocks_ = nullptr;
  TakerTable takers_;
  std::atomic<uint64_t> sent_bytes_{0}, busy_{0};
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, Member> known_ ABSL_GUARDED_BY(mu_);             // By id.
  absl::flat_hash_map<TakerTable::Taker, std::string> names_ ABSL_GUARDED_BY(mu_);  // The same.
  // The session of all that are no members.
  std::optional<Session> session_of_others_ ABSL_GUARDED_BY(mu_);
  CallRate bumps_of_others_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
