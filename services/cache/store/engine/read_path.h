#pragma once
// Match, leases, and the start of a fetch. Thread-safe.

#include "services/cache/store/engine/cache_engine.h"
#include "services/cache/store/engine/source_reads.h"
#include "services/cache/store/index/joint_walk.h"
#include "services/cache/store/lease/session_table.h"
#include "services/cache/store/mover/promoters.h"
#include "services/cache/store/mover/transfer_budget.h"
#include "services/cache/store/source/block_source.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

// A lease until its release has no deadline. Its owner reads in place, so it pins places.
enum LeaseLife : uint8_t { kTimed, kUntilRelease };

// The blocks that a match found in the tiers, and the state that it needs to go on at a source.
struct LocalMatch {
  SessionId session = 0;
  NamespacePtr ns;
  bool leased = false;  // The caller wants a lease.
  LeaseLife life = kTimed;
  Duration lease_ttl{0};
  LeasePtr lease;  // nullptr: there is none yet.
  double prefill_tokens_per_second = 0;
  uint32_t prefetched = 0;
  std::vector<BlockKey> rest = {};  // Keys after the matched ones, before the first repeated one.
  uint32_t repeated = 0;            // Keys from there on.
  std::vector<std::string> holders = {};  // Members that may have the rest, as the caller was told.
  std::string trace = {};
  MatchResult result = {};
};

class ReadPath {
 public:
  // `source` nullptr: the node has none, and needs no `timers`.
  ReadPath(NodeContext* context, SessionTable* sessions, Promoters* promoters,
           TransferBudget* budget, SourceReads* source_reads, BlockSource* source, Timers* timers);

  // As CacheEngine's. `taken`, if not null, gets the lease.
  Result<MatchResult> Match(const MatchRequest& request, LeaseLife life = kTimed,
                            LeasePtr* taken = nullptr);
  Result<std::unique_ptr<FetchStream>> Fetch(const FetchRequest& request);
  Status Release(SessionId session, std::span<const LeaseId> leases);
  Result<Duration> RenewLease(SessionId session, LeaseId lease, Duration ttl);
  Result<std::vector<std::optional<TierKind>>> Exists(const Fingerprint& fingerprint,
                                                      std::span<const BlockKey> keys);

  // Leases that came out of the session table: their pins go, their fetches end.
  void End(const std::vector<LeasePtr>& leases, MissReason reason);

  // The answer of a match after a source was asked, too; counts it.
  Result<MatchResult> Extend(const LocalMatch& local, const Located& located);
  // Adds the answer of a leasing match to the totals, if this is one.
  void CountMatch(const LocalMatch& local, const MatchResult& result);

 private:
  // The findings of a match under the lock of its namespace.
  struct Walked {
    BlockIndex::Walk walk;
    LeasePtr lease;  // On what was matched. nullptr: none was wanted, or nothing was found.
    MissReason miss_reason = MissReason::kNone;
    JointAnswer joint = {};           // For a match over pools.
    std::vector<BlockKey> keys = {};  // The keys of its blocks.
  };
  // The numbers of a match, for the totals.
  struct Found {
    uint64_t blocks = 0, tokens = 0;
    uint64_t missed_blocks = 0, missed_tokens = 0;
    uint32_t prefetched = 0;
    MissReason miss_reason = MissReason::kNone;
  };

  // The lease's life, or which field is wrong.
  Result<Duration> CheckMatch(const MatchRequest& request) const;
  // Null: the match is answered at once.
  std::shared_ptr<FurtherMatch> Wait(const MatchRequest& request, const NamespacePtr& ns);
  Result<Walked> WalkAndPin(const MatchRequest& request, const NamespacePtr& ns, LeaseLife life);
  Status WalkLocked(const MatchRequest& request, const JointPlan* plan, LeaseLife life,
                    NamespaceState& ns, Walked* walked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(ns.mu);
  // Looks for missing blocks at the source, or else counts the match.
  void Finish(const MatchRequest& request, LocalMatch local, MatchResult* result);
  void CountHint(NextUse next);
  // For a match without pools. `missed`: keys that did not match.
  static Found FoundOf(const NamespaceState& ns, const MatchResult& result, size_t missed,
                       uint32_t prefetched);
  // Adds what a leasing match found to the totals.
  void CountLeased(const Found& found, double prefill_tokens_per_second);
  // A lease of nothing yet. One of a match in place keeps places.
  static LeasePtr NewLease(LeaseLife life);
  // A lease on what the walk has matched, with memory for keys that are announced.
  // RESOURCE_EXHAUSTED: there is no memory for it.
  Result<LeasePtr> PinWalk(NamespaceState& ns, const BlockIndex::Walk& walk, LeaseLife life,
                           size_t announced) ABSL_EXCLUSIVE_LOCKS_REQUIRED(ns.mu);
  // The lease is a writer of those of the keys that are not here.
  void Announce(NamespaceState& ns, std::span<const BlockKey> keys, Lease* lease)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ns.mu);
  void Withdraw(const Lease& lease);
  std::shared_ptr<FurtherMatch> Further(LocalMatch local);
  // Memory of a lease to which a source's blocks are added.
  Status ChargeLocated(uint32_t blocks, Lease* lease);
  // Gives the lease to the session. NOT_FOUND: the session or the namespace is gone.
  Result<LeaseId> AddLease(SessionId session, const LeasePtr& lease, LeaseLife life, Duration ttl);
  // Puts what a source located behind the local answer. The blocks, in order.
  std::vector<Lease::LocatedBlock> Append(const LocalMatch& local, const Located& located,
                                          MatchResult* result) const;
  MissReason WhyMissed(NamespaceState& ns, const BlockKey& key)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ns.mu);
  bool SimilarHasBlocks(NamespaceState& ns);
  // Asks for the lease's blocks in host, and for those in host in the faster tiers. By tier, the
  // bytes that go to host before the lease's own.
  ByTier<uint64_t> Promote(const LeasePtr& lease, std::span<const BlockKey> keys);
  void Fill(const LeasePtr& lease, std::span<const MoveQueue::Wanted> wanted);

  NodeContext& context_;
  SessionTable& sessions_;
  Promoters& promoters_;
  TransferBudget& budget_;
  SourceReads& source_reads_;
  BlockSource* const source_;
  Timers* const timers_;
};

}  // namespace cairn::cache
