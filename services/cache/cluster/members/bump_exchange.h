#pragma once
// Brings bumps to members that lack them, and theirs here.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"
#include "services/cache/cluster/peer/peer_links.h"
#include "services/cache/store/engine/for_peers.h"

namespace cairn::cache {

// The answer to a page: takes over what is new, and brings what was asked for, or only the digest
// if both sides know the same by then. `tells_digest`: since version 2 of the peers' protocol.
// Errors as PeerEngine::TakeOverBumps.
Result<BumpPage> AnswerBumps(PeerEngine* engine, const BumpPage& page, bool tells_digest);

// One exchange at a time with each member: first the digest alone, and if the member's differs, a
// page each way until both sides know the same or have told all. Members whose digests differ
// afterwards, because there was news meanwhile, begin again.
//
// Thread-safe. `links` lets go of its callbacks, and `executor` of its tasks, before it is
// destroyed.
class BumpExchange {
 public:
  // `tells_digest`: as AnswerBumps.
  BumpExchange(bool tells_digest, PeerLinks* links, Executor* executor, const Clock* clock)
      : tells_digest_(tells_digest), links_(*links), executor_(*executor), clock_(*clock) {}
  // `engine` outlives it.
  void Attach(PeerEngine* engine) { engine_ = engine; }

  // The members with whom bumps are exchanged. The state of other members is dropped, also of calls
  // under way.
  void SetMembers(const std::vector<std::string>& ids);
  // The member's bumps differ from those of this node. `reason`: any number for what showed that.
  // One that is no member is left alone.
  void Begin(const std::string& member, uint64_t reason = 0);
  // The last exchange with the member was for this reason, and came to its end.
  bool Settled(const std::string& member, uint64_t reason) const;
  // Some exchange has come to its end.
  bool done_once() const;
  uint64_t exchanges() const;
  // Members that it remembers something of.
  size_t known() const;

 private:
  static constexpr Duration kDeadline = std::chrono::seconds(5);
  static constexpr Duration kPause = std::chrono::milliseconds(500);  // Between two with a member.
  // After a member said that this one comes too often.
  static constexpr Duration kLongPause = std::chrono::seconds(10);
  // Where both sides are. `theirs` or `mine` UINT64_MAX: at the end.
  struct Progress {
    uint64_t exchange = 0;     // Its number.
    bool digest_only = false;  // Nothing of this side was told yet.
    uint64_t mine = 0, theirs = 0;
  };

  struct Member {
    uint64_t under_way = 0;           // The exchange. 0: none.
    uint64_t reason = 0;              // The reason for the exchange that is under way.
    std::optional<uint64_t> settled;  // The reason of the last one that came to its end.
    TimePoint not_before{};
  };

  void Ask(const std::string& member, Progress progress);
  void Answered(const std::string& member, Progress progress, const BumpPage& answer);
  void Failed(const std::string& member, const Progress& progress, const Status& why);
  void End(const std::string& member, const Progress& progress, bool done);

  const bool tells_digest_;
  PeerLinks& links_;
  Executor& executor_;
  const Clock& clock_;
  PeerEngine* engine_ = nullptr;
  mutable Mutex mu_;
  std::map<std::string, Member> known_ ABSL_GUARDED_BY(mu_);
  uint64_t exchanges_ ABSL_GUARDED_BY(mu_) = 0;
  bool done_once_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace cairn::cache
