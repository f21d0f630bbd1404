#pragma once
// The cache node without its network: namespaces, index, leases, two-phase writes, tiers and the
// moves between them.
//
// Thread-safe. No call blocks on I/O except FetchStream::Next, Flush, and the three that drop
// (Drop*, BumpEpoch: what they hide is hidden for good, also after a restart, when they return).
// Errors: INVALID_ARGUMENT names field, value and expectation; NOT_FOUND names an unknown session,
// lease, reservation or namespace; RESOURCE_EXHAUSTED says which budget is used up.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/kv/answers.h"
#include "cairn/common/kv/cache_event.h"
#include "cairn/common/kv/joint_match.h"
#include "cairn/common/kv/miss_reason.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/next_use.h"
#include "cairn/common/part.h"
#include "cairn/common/rows.h"
#include "cairn/common/status.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/timers.h"
#include "services/cache/store/state/engine_options.h"
#include "services/cache/store/state/engine_statistics.h"
#include "services/cache/store/state/events.h"
#include "services/cache/store/state/flush_request.h"
#include "services/cache/store/state/ids.h"
#include "services/cache/store/state/node_tenant.h"
#include "services/cache/store/state/tiers.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache {

class BlockSource;
class FurtherMatch;
class InPlaceEngine;
class MemoryAccount;
class PeerEngine;

// How an opening may change the life of a namespace's blocks that are there.
enum class LifeChange : uint8_t {
  kLonger,  // Whoever knows the namespace may open it, and must not hide blocks of others with it.
  kAny      // For administrators, who may drop it, too.
};

struct MatchRequest {
  SessionId session = 0;
  Fingerprint fingerprint;
  std::span<const BlockKey> keys;
  Duration lease_ttl{0};  // 0: default.
  bool lease = true;
  double prefill_tokens_per_second = 0;
  std::string_view trace;
  // Ids of nodes that are known to hold the blocks. At most 4. Valid until Match returns.
  std::span<const std::string> holders = {};
  // A hint for placement. It counts with a lease only.
  NextUse next = NextUse::kUnknown;
  // How long the answer may wait for blocks that somebody writes, until `wait_blocks` (0: all) of
  // them match. Bounded by EngineOptions::max_match_wait.
  Duration wait{0};
  uint32_t wait_blocks = 0;
  // The caller writes what does not match: the lease counts as a writer of it, until it ends.
  // REQUIRES: lease.
  bool announce = false;
  // For a namespace with pools: `keys` has one key for each unit of its layout, and the match is
  // over these pools. `wait`, `wait_blocks` and `announce` are about blocks of pool 0. The blocks
  // are looked for in the tiers alone.
  JointQuestion joint = {};
};

struct MatchResult : MatchedPrefix {
  std::optional<LeaseId> lease;
  Duration lease_ttl{0};
  // Set when some of the keys are in no tier, and the node has a source that may have them. The
  // caller may ask it, or drop this and use the answer as it is. Also set when the match waits:
  // this answer is then empty, and Find has the whole one.
  std::shared_ptr<FurtherMatch> further;
};

// The rest of a match, for a source to answer. One thread uses it.
class FurtherMatch {
 public:
  virtual ~FurtherMatch() = default;
  using Done = std::function<void(Result<MatchResult>)>;
  // Asks the source, without waiting. `done` runs once, with the whole answer: in this call, or on
  // another thread after source_lookup_timeout at the latest, or after half of the time until
  // `deadline` if that is earlier. A match that waits for writers does so before. `done` must be
  // short. A source that is late or fails adds nothing to the answer. The lease then covers the
  // blocks that the source located: nothing pins them, and a fetch reads from the source those that
  // no tier has by then. NOT_FOUND: the session or the namespace ended meanwhile. Call it once.
  virtual void Find(TimePoint deadline, Done done) = 0;
};

inline constexpr Duration kMaxPrefetchHorizon = std::chrono::seconds(300);

struct PrefetchRequest {
  SessionId session = 0;  // The hint ends with it.
  Fingerprint fingerprint;
  std::span<const BlockKey> keys;
  Duration needed_in{0};  // From now; at most kMaxPrefetchHorizon.
};

struct FetchRequest {
  SessionId session = 0;
  LeaseId lease = 0;
  uint32_t block_begin = 0, block_end = 0;  // end 0: all.
  uint32_t layer_begin = 0, layer_end = 0;  // end 0: all.
  // The reader compares slices with their hashes: of what lies in host only a sample is verified
  // here.
  bool reader_verifies = false;
  std::string_view trace = {};
  // Not empty: only these rows, of the layer `layer_begin`, as FetchedRows. Valid until Fetch
  // returns. The range of blocks is not looked at, and every slice is verified here.
  std::span<const RowGroup> rows = {};
};

class SlicePieces;

// `slice_bytes` bytes at `data`, which stay valid as long as `hold`.
struct FetchedSlice : SliceInfo {
  std::span<const std::byte> data;
  std::shared_ptr<const void> hold;
  // Within the engine, for fetches of rows: `data` is empty, and the pages with the rows are here.
  std::shared_ptr<const SlicePieces> pieces = nullptr;
};

// The bytes of a group of rows, at `data`, which stay valid as long as `hold`.
struct FetchedRows : RowsInfo {
  std::optional<TierKind> tier;
  uint64_t xxh3 = 0;  // HashRows.
  std::span<const std::byte> data;
  std::shared_ptr<const void> hold;
};

struct FetchFailure {
  uint32_t block = 0;
  MissReason reason = MissReason::kCorrupt;
};

// Not thread-safe; belongs to one reader. Destroying it ends the fetch. The engine must outlive it.
// If the lease ends first, the rest become failures.
class FetchStream {
 public:
  virtual ~FetchStream() = default;
  using Item = std::variant<FetchedSlice, FetchFailure, FetchedRows>;
  // The next item, nullopt at the end. Blocks on disk reads, never longer than until `deadline` on
  // the engine's clock; then DEADLINE_EXCEEDED, and Next may be called again. Slices that came from
  // disk past the host tier lie in bounded buffers: a reader that keeps their `hold` while it asks
  // for more may wait for itself until the deadline.
  virtual Result<std::optional<Item>> Next(TimePoint deadline) = 0;
  // Whether the lease is over; what was handed out stays readable all the same. Any thread.
  virtual bool lease_ended() const { return false; }
  // It holds buffers that another fetch waits for. Not while Next runs.
  virtual bool holds_up_others() const { return false; }
};

struct ReservePartRequest {
  BlockKey key;
  std::optional<BlockKey> parent;
  uint64_t first_position = 0;
  format::PartRect part;
  uint64_t bytes = 0;
  double compute_seconds = 0;
};

struct WatchRequest {
  std::optional<SessionId> session = std::nullopt;        // nullopt: of nobody in particular.
  std::optional<Fingerprint> fingerprint = std::nullopt;  // nullopt: all that the session may see.
  bool snapshot = false;  // Begins with what is stored, then kSnapshotEnd.
  // Without a session: only events of this tenant's namespaces. Empty: of all.
  std::string tenant = {};
};

class CacheEngine {
 public:
  struct Dependencies {
    // With a host tier. The persistent one, if there is one, is not yet recovered. They outlive the
    // engine.
    Tiers tiers;
    Clock* clock = nullptr;  // Required.
    // Required: moves and reclaim run on it. Stopped before the engine is destroyed.
    Executor* executor = nullptr;
    std::string node_id;
    uint64_t node_epoch = 0;
    // For the statistics: "io_uring/direct" and the like, or empty without a disk tier.
    std::string disk_io_mode = {};
    // Asked for blocks that no tier has. nullptr: the node has no source. It outlives the engine,
    // and lets go of every callback before the engine is destroyed.
    BlockSource* source = nullptr;
    Timers* timers = nullptr;  // Required with a source. Outlives the engine.
    // All memory that grows with the requests of clients is charged to it. nullptr: nothing bounds
    // it. It outlives the engine.
    MemoryAccount* memory = nullptr;
    // The id of a new bump: random bytes, which no other member may ever draw. nullptr: the
    // system's.
    std::function<std::array<uint8_t, 16>()> new_bump_id = nullptr;
  };
  // Recovers from the persistent tier before it returns.
  static Result<std::unique_ptr<CacheEngine>> Create(const EngineOptions& options,
                                                     const Dependencies& dependencies);
  virtual ~CacheEngine() = default;

  // Sessions own leases and reservations. RESOURCE_EXHAUSTED over max_sessions.
  // `tenant`: the only one whose namespaces the session may use; for it, others are not there.
  // Empty: any. kNoTenant: none, and calls that name a namespace are PERMISSION_DENIED.
  virtual Result<SessionId> OpenSession(std::string_view client_name, std::string_view tenant) = 0;
  Result<SessionId> OpenSession(std::string_view client_name) {
    return OpenSession(client_name, std::string_view());
  }
  // Releases leases, aborts reservations. Unknown: no effect.
  virtual void CloseSession(SessionId session) = 0;

  // `block_life`: so long after its last use a block is not served any more, and goes first. 0: as
  // the namespace has it already, or else the node's default. A shorter one than the namespace has
  // already changes nothing, unless `change` allows it. INVALID_ARGUMENT: less than
  // kShortestBlockLife, or more than kLongestBlockLife.
  virtual Result<OpenedNamespace> OpenNamespace(const NamespaceSpec& spec, bool strict,
                                                Duration block_life, LifeChange change) = 0;
  Result<OpenedNamespace> OpenNamespace(const NamespaceSpec& spec, bool strict,
                                        Duration block_life = Duration(0)) {
    return OpenNamespace(spec, strict, block_life, LifeChange::kLonger);
  }
  // NOT_FOUND for an unknown fingerprint.
  virtual Result<std::shared_ptr<const NamespaceSpec>> GetNamespace(
      const Fingerprint& fingerprint) const = 0;
  // The same for a session: NOT_FOUND, too, of one that the session may not use.
  virtual Result<std::shared_ptr<const NamespaceSpec>> GetNamespaceFor(
      SessionId session, const Fingerprint& fingerprint) const = 0;
  // The tenant of a namespace, also of one whose blocks cannot be read. NOT_FOUND as GetNamespace.
  virtual Result<std::string> TenantOf(const Fingerprint& fingerprint) const = 0;

  // The blocks that the tiers hold. Does not wait (MatchResult::further).
  virtual Result<MatchResult> Match(const MatchRequest& request) = 0;
  virtual Result<std::unique_ptr<FetchStream>> Fetch(const FetchRequest& request) = 0;
  virtual Status Release(SessionId session, std::span<const LeaseId> leases) = 0;
  virtual Result<Duration> RenewLease(SessionId session, LeaseId lease, Duration ttl) = 0;
  // A hint: these blocks will be matched in about `needed_in`. Blocks on disk are promoted behind
  // all demand, and only into room that is free or holds blocks likely to be used later than that;
  // blocks in host memory are evicted after others until then. No lease.
  virtual Result<PrefetchOutcome> Prefetch(const PrefetchRequest& request) = 0;
  // Per key: fastest tier that holds the complete block.
  virtual Result<std::vector<std::optional<TierKind>>> Exists(const Fingerprint& fingerprint,
                                                              std::span<const BlockKey> keys) = 0;

  // One result per part. ALREADY_EXISTS: the part is committed. A reservation takes room, not the
  // key: several writers may reserve the same part.
  virtual Result<std::vector<Result<ReservationId>>> Reserve(
      SessionId session, const Fingerprint& fingerprint, std::span<const ReservePartRequest> parts,
      Duration ttl) = 0;
  // Copies into the reservation. OUT_OF_RANGE past its end. RESOURCE_EXHAUSTED: pieces without
  // order left too many gaps (lease/written_ranges.h).
  virtual Status Write(SessionId session, ReservationId reservation, uint64_t offset,
                       std::span<const std::byte> data) = 0;
  // Verifies header and slices against the reservation and the layout, then makes the parts
  // visible. Slices that a client wrote in place are not verified here, but by whoever reads or
  // copies them. FAILED_PRECONDITION: not all bytes were written. DATA_LOSS: bytes fail their hash.
  // ALREADY_EXISTS: somebody else committed the part first; this one's room is free again.
  // INVALID_ARGUMENT: somebody committed a part that this one crosses.
  virtual Result<std::vector<Status>> Commit(SessionId session,
                                             std::span<const ReservationId> reservations,
                                             std::string_view trace) = 0;
  virtual Status Abort(SessionId session, std::span<const ReservationId> reservations) = 0;

  // Everything committed before the call is on disk when it returns OK, and survives a power loss.
  // Blocks. See WriteBack::Flush.
  virtual Status Flush(const FlushRequest& request) = 0;
  Status Flush(TimePoint deadline) { return Flush(FlushRequest{.deadline = deadline}); }

  virtual EngineStats GetStats() const = 0;
  // A session that named a tenant gets this tenant's events alone. NOT_FOUND: the session is not
  // open, or the namespace does not exist or is another tenant's.
  virtual Result<std::unique_ptr<EventQueue>> Watch(const WatchRequest& request) = 0;

  virtual std::vector<NamespaceInfo> ListNamespaces(std::string_view tenant) const = 0;  // "": all.
  virtual Result<DropResult> DropNamespace(const Fingerprint& fingerprint) = 0;
  virtual Result<DropResult> DropTenant(std::string_view tenant) = 0;
  virtual Result<DropResult> BumpEpoch(const Fingerprint& fingerprint) = 0;

  // The limits of tenants from now on (node_tenant.h). Call it again when they have changed: who
  // has more than it may have then gives back blocks as it stores others.
  virtual void SetTenantLimits(NodeTenants::LimitsOf limits_of) = 0;
  // The tenants that have namespaces, in no order.
  virtual std::vector<std::shared_ptr<const NodeTenant>> GetTenants() const = 0;

  // For sessions on this machine (in_place.h); nullptr where the engine has no such side.
  virtual InPlaceEngine* in_place() { return nullptr; }
  // For other members of a cluster (for_peers.h); nullptr where the engine has no such side.
  virtual PeerEngine* for_peers() { return nullptr; }

  // Expires leases, reservations and incomplete blocks, retries postponed copies to disk. Called
  // every 100 ms or so by the owner; tests call it after moving the clock.
  virtual void Tick() = 0;

  // Refuses new reservations with UNAVAILABLE; reads go on.
  virtual void BeginDrain() = 0;
  // Waits until nobody has a lease or a reservation. False: somebody had one at `deadline`.
  virtual bool WaitUnused(TimePoint deadline) = 0;
};

}  // namespace cairn::cache
