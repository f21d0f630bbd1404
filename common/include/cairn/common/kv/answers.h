#pragma once
// The answers of a cache node, in plain C++. The node fills these structs and its clients read
// them. Ranges and units of the fields are those of proto/cairn/v1.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/hash.h"
#include "cairn/common/kv/joint_match.h"
#include "cairn/common/kv/miss_reason.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/tier_kind.h"

namespace cairn {

struct OpenedNamespace {
  Digest fingerprint = {};
  bool created = false;
  // Namespaces of this tenant at the node that differ in exactly one field, at most 8. If there are
  // any, probably a setting was changed, and the cache is not simply empty.
  struct Similar {
    FieldDifference difference;
    uint64_t stored_blocks = 0;
  };
  std::vector<Similar> differs = {};
};

// Consecutive blocks of a matched prefix that lie in the same tier.
struct TierRun {
  // nullopt: in no tier of the node, which can get them from another place.
  std::optional<TierKind> tier = TierKind::kHost;
  uint32_t blocks = 0;
  uint64_t bytes = 0;
  // Time from the match until the last byte of the run could leave the node, estimated from the
  // node's recent measurements and from the reads that wait before this one. Does not include the
  // network. Never smaller than that of the run before. 0 if unknown.
  double seconds = 0;
};

// The result of a match. How the prefix is leased differs: the engine names the lease by a number,
// and a client holds an object that ends it.
struct MatchedPrefix {
  uint32_t matched_blocks = 0;
  std::vector<TierRun> tiers = {};  // The matched prefix in order.
  // The reason for block `matched_blocks`. kNone: all matched.
  MissReason miss_reason = MissReason::kNone;
  uint64_t bytes = 0;                  // Stored bytes of the matched blocks.
  double estimated_fetch_seconds = 0;  // `seconds` of the last run.
  // For a match over pools: the matched blocks are those of its runs, in their order, and
  // `miss_reason` is that of a block of the limiting pool.
  JointAnswer joint = {};
};

// The effect of a hint on its blocks. Every key is counted once.
struct PrefetchOutcome {
  uint32_t present_blocks = 0;  // Already in the host tier.
  uint32_t queued_blocks = 0;   // On disk, on their way to the host tier.
  uint32_t absent_blocks = 0;
  uint32_t refused_blocks = 0;  // Too many blocks are already hinted or waiting.
  // Time until the last queued block could be in the host tier. 0: unknown, or none is queued.
  double estimated_seconds = 0;
};

// One layer of one part of one block.
struct SliceInfo {
  uint32_t block = 0;  // Counted from the prompt's first block.
  format::PartRect part = {};
  uint32_t layer = 0;
  format::Codec codec = format::Codec::kRaw;
  uint64_t slice_bytes = 0;
  uint64_t xxh3 = 0;  // Hash of the whole slice.
  // The tier that the slice was read from, for this fetch or its match. nullopt: it came from
  // another place.
  std::optional<TierKind> tier = TierKind::kHost;
};

// The facts that the eviction policy of a namespace has learned about a group of blocks.
struct LearnedGroup {
  std::string name = {};     // For people, such as "turn 1, 8 to 15 new blocks".
  double uses = 0;           // Recent uses of its blocks; older ones count less.
  double block_seconds = 0;  // Time that its blocks waited meanwhile, remembered ones included.
  uint64_t blocks = 0;       // Blocks that are in it now, remembered ones included.
};

// The complete blocks of one pool, each once, as they are served.
struct PoolBlocks {
  uint64_t blocks = 0;
  uint64_t bytes = 0;
};

// The room of a tenant in a tier, in whole pages, and what a policy says of it.
struct TierRoom {
  TierKind tier = TierKind::kHost;
  uint64_t bytes = 0;
  std::optional<uint64_t> most = {};  // nullopt: no limit.
  uint64_t guaranteed = 0;            // Others take nothing away from this much.
};

struct NamespaceInfo {
  // With an empty layout if this version does not know the layout's kind of values.
  NamespaceSpec spec = {};
  Digest fingerprint = {};
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  uint64_t generation = 0;
  uint64_t host_blocks = 0;
  // Left the host tier to make room, since this generation began.
  uint64_t evicted_host_blocks = 0;
  uint64_t evicted_host_bytes = 0;
  // For the whole tenant: memory of the host tier that only its blocks use.
  uint64_t tenant_host_bytes = 0;
  // For the whole tenant: in each tier that there is.
  std::vector<TierRoom> tenant_room = {};
  // Empty: the policy learns nothing, or has too few blocks for it.
  std::vector<LearnedGroup> learned = {};
  // Blocks that left, but whose group the policy still knows.
  uint64_t remembered_blocks = 0;
  // A block is not served any more when this time has passed since its last use. 0: forever.
  Duration block_life{0};
  // By the number of the pool. Empty: the layout has no pools.
  std::vector<PoolBlocks> pools = {};
};

struct DropResult {
  uint64_t namespaces = 0;
  uint64_t hidden_blocks = 0;
};

}  // namespace cairn
