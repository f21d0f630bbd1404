#pragma once
// Which block of a namespace leaves a tier first. A policy owns the order of the candidates of one
// index; the index says which blocks are candidates at all (leaf first, not pinned, not waiting for
// their copy to disk). Copies of leased blocks that may go are the index's own affair: they go when
// the policy has no other.
//
//   index                                   policy
//     BeginRequest, Used, Stored, Left  ->    learns about blocks
//     Enter, Exit                       ->    files and removes candidates
//     Victim                            <-    names the candidate that goes next
//     Spare                             ->    "look again": it may have been used meanwhile
//     Evict                             ->    it goes
//
// A policy decides only within its namespace. Which namespace gives a block, the index says with
// NextRank, which depends on nothing but the times at which blocks were stored and used. So nothing
// that a tenant says about its blocks takes room from another tenant.
//
// The index keeps the order of last use itself, for NextRank. Least recently used (`lru`) is that
// order, and so it is the index without a policy.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cairn/common/kv/answers.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/next_use.h"
#include "cairn/common/tier_kind.h"

namespace cairn::cache {

// Number of a candidate: the tree node whose last block it is.
using CandidateId = uint32_t;

// The facts that a policy may look at.
struct BlockUse {
  uint32_t last_use = 0;        // UseTicks of the last match or store; may lie in the future.
  uint8_t uses = 0;             // Matches since the block was stored; saturates.
  uint8_t group = 0;            // The policy's answer for it. Policies without groups: 0.
  uint32_t bytes = 0;           // All parts, in the tier.
  float recompute_seconds = 0;  // As the writer measured it; 0 if unknown.
};

// A match that counts as a use.
struct MatchedRequest {
  std::span<const BlockKey> keys = {};  // All that were asked for.
  uint32_t matched = 0;                 // The first `matched` blocks are here.
  BlockUse last = {};                   // The last of them, as it was before; if there are any.
  NextUse next = NextUse::kUnknown;
  uint32_t now = 0;  // UseTicks.
};

struct LearnedPlacement {
  std::vector<LearnedGroup> groups;
  uint64_t remembered_blocks = 0;  // Blocks that left, but whose group is still known.
};

// Not thread-safe: the owner of the index locks.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // False: BeginRequest, Used, Stored and Left have no effect and need not be called.
  virtual bool Learns() const { return false; }
  // Before the blocks of the request are Used.
  virtual void BeginRequest(const MatchedRequest&) {}
  // `count` blocks of the request, of a path and in order, are used, and were all as `before`. The
  // group that they have from now on.
  virtual uint8_t Used(const BlockUse& before, uint32_t) { return before.group; }
  // A block is complete now. `parent_group`: of the block before it, if that is known. Its group.
  virtual uint8_t Stored(const BlockKey&, std::optional<uint8_t>, uint32_t) { return 0; }
  // A block left its last tier.
  virtual void Left(const BlockKey&, const BlockUse&) {}

  // The candidate is `use` now: it is new, or another block, or the same and was used.
  virtual void Enter(TierKind tier, CandidateId id, const BlockUse& use) = 0;
  // REQUIRES: it entered.
  virtual void Exit(TierKind tier, CandidateId id) = 0;

  // The candidate that should go next; nullopt: there is none.
  virtual std::optional<CandidateId> Victim(TierKind tier) = 0;
  // True: the victim stays, since it was used after it was filed, and has its place among the
  // others again. False at the latest when every candidate has been spared once.
  virtual bool Spare(TierKind tier, CandidateId id, const BlockUse& use) = 0;
  // The victim's block, which has this key, is about to leave the tier to make room.
  virtual void Evict(TierKind tier, const BlockKey& key) = 0;

  virtual size_t MemoryBytes() const = 0;
  // nullopt: the policy learns nothing.
  virtual std::optional<LearnedPlacement> Learned() const { return std::nullopt; }
};

}  // namespace cairn::cache
