#pragma once
// Match, leases, and the start of a fetch. Thread-safe.

#include "services/cache/engine/cache_engine.h"
#include "services/cache/lease/session_table.h"
#include "services/cache/mover/promoters.h"
#include "services/cache/mover/transfer_budget.h"
#include "services/cache/state/node_context.h"

namespace cairn::cache {

class ReadPath {
 public:
  ReadPath(NodeContext* context, SessionTable* sessions, Promoters* promoters,
           TransferBudget* budget);

  // As CacheEngine's. A lease until its release has no deadline. `taken`, if not null, gets the
  // lease.
  enum LeaseLife : uint8_t { kTimed, kUntilRelease };
  Result<MatchResult> Match(const MatchRequest& request, LeaseLife life = kTimed,
                            LeasePtr* taken = nullptr);
  Result<std::unique_ptr<FetchStream>> Fetch(const FetchRequest& request);
  Status Release(SessionId session, std::span<const LeaseId> leases);
  Result<Duration> RenewLease(SessionId session, LeaseId lease, Duration ttl);
  Result<std::vector<std::optional<TierKind>>> Exists(const Fingerprint& fingerprint,
                                                      std::span<const BlockKey> keys);

  // Leases that came out of the session table: their pins go, their fetches end.
  void End(const std::vector<LeasePtr>& leases, MissReason reason);

 private:
  // Adds what a leasing match found to the totals.
  void CountMatch(const MatchRequest& request, const NamespaceState& ns,
                  const BlockIndex::Walk& walk, MissReason miss_reason);
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
};

}  // namespace cairn::cache
