#pragma once
// What a cache node answers, in plain C++. Ranges and units of the fields are those of
// proto/cairn/v1/cache.proto.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "cairn/common/status.h"
#include "cairn/common/tier_kind.h"

namespace cairn::client {

// Why a block was not served. The numbers are those of the wire. No node sends kUnavailable: the
// client says it when it did not ask the node, or got no answer.
enum class MissReason : uint8_t {
  kNone = 0,
  kAbsent = 1,
  kIncomplete = 2,
  kEvicted = 3,
  kCorrupt = 4,
  kDeadline = 5,
  kRefused = 6,
  kFingerprint = 7,
  kUnavailable = 8,
};
inline constexpr size_t kMissReasonCount = 9;
inline constexpr size_t kNodeMissReasonCount = 8;  // How many of them a node sends.
// The label value in metrics: "none", "absent", ...
std::string_view Name(MissReason reason);

using cairn::kTierCount;
using cairn::TierKind;

// How bytes travel between client and node: over shared memory on the same machine, or over gRPC.
enum class Path : uint8_t { kGrpc = 0, kLocal = 1 };
inline constexpr size_t kPathCount = 2;
std::string_view Name(Path path);  // "grpc", "local".

// The options of every call that has no options of its own.
struct CallOptions {
  Duration deadline = std::chrono::seconds(1);  // From now. The call never takes longer.
  std::string trace = {};                       // Logged with all that the call causes.
};

struct OpenedNamespace {
  Digest fingerprint = {};
  bool created = false;
  // Namespaces of this tenant at the node that differ in exactly one field. If there are any,
  // probably a setting was changed, and the cache is not simply empty.
  struct Similar {
    FieldDifference difference;
    uint64_t stored_blocks = 0;
  };
  std::vector<Similar> differs = {};
};

struct TierRun {
  TierKind tier = TierKind::kHost;
  uint32_t blocks = 0;
  uint64_t bytes = 0;
  // Time from the match until the last byte of the run could leave the node, estimated from the
  // node's recent measurements. Does not include the network. Never smaller than that of the run
  // before. 0 if unknown.
  double seconds = 0;
};

// What the node did with the blocks of a hint. Every key is counted once.
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
  TierKind tier = TierKind::kHost;
};

struct TierStat {
  TierKind tier = TierKind::kHost;
  uint64_t capacity_bytes = 0, used_bytes = 0, blocks = 0, read_bytes = 0, written_bytes = 0,
           evicted_blocks = 0;
};

// The message StatResponse of proto/cairn/v1/cache.proto, which documents the fields.
struct NodeStats {
  std::string node_id = {};
  uint64_t node_epoch = 0;
  std::string version = {};
  double uptime_seconds = 0;
  std::vector<TierStat> tiers = {};
  uint64_t namespaces = 0, blocks = 0, incomplete_blocks = 0, leases = 0, reservations = 0,
           reserved_bytes = 0, sessions = 0, unflushed_bytes = 0, index_bytes = 0,
           matched_tokens = 0, missed_tokens = 0, fetched_bytes = 0, pushed_bytes = 0,
           fetched_host_bytes = 0, fetched_disk_bytes = 0, promoted_blocks = 0, corrupt_blocks = 0,
           prefetched_blocks = 0, prefetched_used_blocks = 0;
  uint64_t misses[kNodeMissReasonCount] = {};  // Blocks not served, by MissReason.
  bool draining = false;
  double prefill_seconds_saved = 0;
  std::string disk_io_mode = {};
};

struct CacheEvent {
  enum class Kind : uint8_t {
    kStored = 1,
    kRemoved = 2,
    kTierAdded = 3,
    kTierRemoved = 4,
    kSnapshotEnd = 5,
    kNamespaceDropped = 6,
  };
  Kind kind = Kind::kStored;
  uint64_t node_epoch = 0;
  uint64_t sequence = 0;
  Digest fingerprint = {};
  BlockKey key = {};
  std::optional<BlockKey> parent = {};
  TierKind tier = TierKind::kHost;
};

struct NamespaceInfo {
  NamespaceSpec spec = {};
  Digest fingerprint = {};
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  uint64_t generation = 0;
};

struct DropResult {
  uint64_t namespaces = 0;
  uint64_t hidden_blocks = 0;
};

}  // namespace cairn::client
