#pragma once
// The client of a cache node. In short; examples/cpp/get_and_push.cc is the whole program, and
// docs/cpp.md explains it:
//
//   auto connected = client::Connect({.address = address, .client_name = "get_and_push"});
//   client::CacheClient& node = **connected;
//   auto opened = node.OpenNamespace(spec, {.deadline = seconds(10)});
//
//   auto match = node.Match(cairn::Fingerprint(spec), keys, {.deadline = seconds(5)});
//   if (!match.ok() || match->matched_blocks == 0) return 0;
//   const cairn::Status fetched = node.Fetch(match->lease, {}, sink, {});
//
//   auto pushed = node.Push(cairn::Fingerprint(spec), parts, {});
//
// Every error of Match, Fetch and Push is a miss to its caller (next_action.h, docs/errors.md): a
// cache that is slow, away or wrong never fails a request. Calls end by their deadline. After some
// failures in a row a circuit breaker answers UNAVAILABLE at once, without paying the deadline
// again.

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/client/lease.h"
#include "cairn/client/types.h"

namespace cairn::client {

struct MatchOptions {
  Duration deadline = std::chrono::milliseconds(50);
  Duration lease_ttl{0};                 // 0: the node's default (30 s). At most 600 s.
  bool lease = true;                     // False: only ask. Nothing is promoted.
  double prefill_tokens_per_second = 0;  // For the node's metric of seconds saved; 0 if unknown.
  std::string trace = {};
};

struct MatchOutcome {
  uint32_t matched_blocks = 0;
  Lease lease = {};                 // Held when matched_blocks > 0 and MatchOptions::lease.
  std::vector<TierRun> tiers = {};  // The matched prefix in order.
  MissReason miss_reason = MissReason::kNone;  // Of block `matched_blocks`; kNone when all matched.
  uint64_t bytes = 0;                          // Stored bytes of the matched blocks.
  double estimated_fetch_seconds = 0;          // `seconds` of the last run.
};

// Blocks and layers [begin, end); end 0 means all.
struct FetchRange {
  uint32_t block_begin = 0, block_end = 0;
  uint32_t layer_begin = 0, layer_end = 0;
};

struct LayerRange {
  uint32_t begin = 0, end = 0;  // end 0: all.
};

struct FetchOptions {
  // Longest time without a complete slice; then DEADLINE_EXCEEDED.
  Duration progress = std::chrono::seconds(1);
  Duration deadline = std::chrono::seconds(30);  // Of the whole fetch.
  std::stop_token cancel = {};                   // Ends the fetch soon, with CANCELLED.
  // False: bytes are delivered without comparing them with their hashes. Only for measurements, and
  // for readers that verify SliceInfo::xxh3 themselves.
  bool verify = true;
  std::string trace = {};
};

// Pins lent bytes: while one exists, the node neither evicts its blocks nor uses their memory
// again, whether or not the lease is still held. Thread-safe.
class LentHold {
 public:
  virtual ~LentHold() = default;
  // False once the session has ended: the node closed it, died, or wrote nonsense. Bytes of a dead
  // node stay as they were, and a living one waits with its memory until the client hangs up, with
  // the last hold; but nobody vouches for either. So whoever computed something from lent bytes
  // asks afterwards: true means that everything read before the call was right, false to throw the
  // result away, as after a miss. Costs a system call.
  virtual bool Pinned() const = 0;
};

// Takes what a fetch brings. Called only by the thread that called Fetch, while it is in Fetch.
// Slices come in any order.
class FetchSink {
 public:
  virtual ~FetchSink() = default;

  // Where the slice's bytes shall go: a span of slice_bytes that stays valid until OnSlice or
  // OnBlockFailed for it, or until Fetch returns. An empty span: to Pieces, or the client keeps
  // them in its own buffer. Bytes there mean nothing before OnSlice. Another size ends the fetch
  // with INTERNAL.
  virtual std::span<std::byte> Destination(const SliceInfo&) { return {}; }

  // Where Destination gave no span: pieces that follow each other, together slice_bytes long, on
  // the same terms. Asked where bytes come out of the node's memory and can be copied there in one
  // pass.
  virtual std::vector<std::span<std::byte>> Pieces(const SliceInfo&) { return {}; }

  // A whole slice whose bytes have its hash. `data` is what Destination gave, or the client's
  // buffer, valid during the call; none when the bytes are in what Pieces gave. A status other than
  // OK ends the fetch with it.
  virtual Status OnSlice(const SliceInfo& slice, std::span<const std::byte> data) = 0;

  // The block will not be complete; kCorrupt: bytes failed their hash here or at the node. More
  // slices of it may still come. Called at most once per block.
  virtual void OnBlockFailed(uint32_t block, MissReason reason) = 0;

  // True: this reader can use bytes where they lie. Asked once per fetch. A client on the same
  // machine as its node then calls OnLentSlice for slices that lie in the node's memory, instead of
  // Destination, Pieces and OnSlice. Every other slice (from the network, from disk past the node's
  // memory) still comes through these.
  virtual bool WantsLent() const { return false; }

  // A whole slice, verified, in memory shared with the node: mapped read-only, valid as long as
  // `hold`. All slices of one part have the same hold and lie as cairn/common/part.h says: in layer
  // order without gaps, so that the slice of layer i begins where that of layer i - 1 ends, and a
  // part that covers all layers is one contiguous run. The node cannot use this memory for others
  // while `hold` lives: drop it soon, or copy.
  virtual Status OnLentSlice(const SliceInfo& slice, std::span<const std::byte> data,
                             std::shared_ptr<const LentHold> hold) {
    (void)hold;
    return OnSlice(slice, data);
  }
};

// A sealed part (cairn/common/part.h) and where it belongs.
struct PartToPush {
  BlockKey key = {};
  std::optional<BlockKey> parent = {};  // nullopt: a root.
  uint64_t first_position = 0;          // Of the block's first token, in tokens.
  format::PartRect rect = {};
  std::span<const std::byte> bytes = {};
  // Keeps `bytes` alive. With it nothing is copied, and the network may use the bytes until some
  // time after Push returned. Without it `bytes` must live until Push returns, and is copied.
  std::shared_ptr<const void> hold = {};
  double compute_seconds = 0;  // What computing the block cost; 0 if unknown.
};

struct PushOptions {
  Duration deadline = std::chrono::seconds(10);
  std::optional<Duration> room_deadline = {};  // Of BeginPush's wait for room; nullopt: `deadline`.
  Duration reservation_ttl{0};                 // 0: the node's default (30 s).
  std::string trace = {};
};

// A part that the caller is about to write.
struct PartToWrite {
  BlockKey key = {};
  std::optional<BlockKey> parent = {};  // nullopt: a root.
  uint64_t first_position = 0;          // Of the block's first token, in tokens.
  format::PartRect rect = {};
  uint64_t bytes = 0;          // Of the sealed part: format::PartBytes.
  double compute_seconds = 0;  // What computing the block cost; 0 if unknown.
};

// Room for parts, to be filled in place and committed: on the same machine as the node it is the
// node's own memory, and writing there is the only copy; elsewhere it is a buffer of the client.
// Not thread-safe, but several threads may fill the rooms. Destroying it without Commit gives the
// room back. Must not outlive its client.
class InPlacePush {
 public:
  struct Slot {
    Status status = {};              // OK: write the part into `room`, or it is there already.
    std::span<std::byte> room = {};  // PartToWrite::bytes long, 64-byte aligned. Empty when the
                                     // status is not OK, and when the node has the part already.
  };
  virtual ~InPlacePush() = default;
  // One per part, in order. Rooms are valid until Commit or destruction. Their bytes mean nothing
  // before they are written.
  virtual std::span<const Slot> slots() const = 0;
  virtual Path path() const = 0;
  // Stores the parts in the rooms, each a sealed part (format::SealPart, format::SealCopy). One
  // status per part, in order, as CacheClient::Push; slots that were not OK keep theirs. Once.
  virtual Result<std::vector<Status>> Commit() = 0;
};

struct WatchOptions {
  std::optional<Digest> fingerprint = {};  // nullopt: all namespaces.
  bool snapshot = false;  // First one kStored for each block that is there, then kSnapshotEnd.
};

// Events of a node. Not thread-safe but for Cancel. Destroying it ends the watch.
class EventStream {
 public:
  virtual ~EventStream() = default;
  // The next event; nullopt when `wait` passed without one. UNAVAILABLE when the connection broke,
  // RESOURCE_EXHAUSTED when this watcher was too slow: start again, with a snapshot. CANCELLED
  // after Cancel.
  virtual Result<std::optional<CacheEvent>> Next(Duration wait) = 0;
  // Any thread.
  virtual void Cancel() = 0;
};

enum class BreakerState : uint8_t { kClosed, kOpen, kHalfOpen };
std::string_view Name(BreakerState state);

// Totals since the client was made, unless said otherwise.
struct ClientStats {
  uint64_t matches = 0, matched_blocks = 0, fetches = 0, fetched_slices = 0, pushed_parts = 0;
  uint64_t fetched_bytes[kTierCount] = {};  // Verified, by the tier they came from.
  uint64_t pushed_bytes = 0;                // Committed.
  // The same bytes by the way they took.
  uint64_t fetched_bytes_by_path[kPathCount] = {};
  uint64_t pushed_bytes_by_path[kPathCount] = {};
  uint64_t lent_bytes = 0;       // Of fetched_bytes: delivered without a copy.
  uint64_t local_sessions = 0;   // Same-node sessions opened.
  uint64_t local_fallbacks = 0;  // Calls that the same-node path could not serve, made over gRPC.
  uint64_t corrupt_slices = 0;   // Failed their hash here.
  uint64_t sessions = 0;         // Opened; the first included.
  uint64_t breaker_opened = 0;
  uint64_t breaker_rejected = 0;  // Calls answered UNAVAILABLE without asking the node.
  uint64_t dropped_releases = 0;  // Leases left to their expiry, since too many releases waited.
  std::array<uint64_t, 17> calls_by_code{};  // Ended calls, by absl::StatusCode.
  // Now:
  bool connected = false;
  BreakerState breaker = BreakerState::kClosed;
  Path path = Path::kGrpc;       // What the next Match, Fetch or Push takes.
  std::string path_reason = {};  // Why not the same-node path, for people; empty when it is taken.
};

// Thread-safe.
class CacheClient {
 public:
  virtual ~CacheClient() = default;

  // Registers the namespace at the node. INVALID_ARGUMENT for a spec that is not valid. In every
  // other case the spec is remembered: it is opened (again) whenever a session begins, so a worker
  // that starts before its node only needs Fingerprint(spec).
  virtual Result<OpenedNamespace> OpenNamespace(const NamespaceSpec& spec,
                                                const CallOptions& options = {}) = 0;

  // The longest complete prefix of `keys`, 1 to 65536, at the node. A miss is an OK answer with
  // matched_blocks = 0.
  virtual Result<MatchOutcome> Match(const Digest& fingerprint, std::span<const BlockKey> keys,
                                     const MatchOptions& options) = 0;

  // Brings slices of leased blocks to `sink`, each verified. OK when the node has sent all it
  // could; blocks that failed were reported to the sink. After an error, slices already given to
  // OnSlice are good. NOT_FOUND: the lease or its session has ended.
  virtual Status Fetch(const Lease& lease, const FetchRange& range, FetchSink& sink,
                       const FetchOptions& options) = 0;

  // Match, and Fetch of all that it found, for readers that want the bytes whatever there is of
  // them: over gRPC one round trip instead of two. The outcome holds no lease; what it found is
  // leased until the call ends. `match.deadline` is for the answer, `fetch.deadline` for all.
  // `lease` and `lease_ttl` are not read. An error of the whole call may come after slices: those
  // are good.
  virtual Result<MatchOutcome> Get(const Digest& fingerprint, std::span<const BlockKey> keys,
                                   const LayerRange& layers, FetchSink& sink,
                                   const MatchOptions& match, const FetchOptions& fetch);

  // Stores parts. One status per part, in order: OK also for a part that the node has already.
  // Parts that could not be sent give their room back. An error of the whole call means that none
  // is known to be stored.
  virtual Result<std::vector<Status>> Push(const Digest& fingerprint,
                                           std::span<const PartToPush> parts,
                                           const PushOptions& options) = 0;

  // Takes room for parts, to be written in place. PushOptions::deadline holds for this call and for
  // Commit, each. Errors as Push. On the same-node path a call takes room for at most the node's
  // budget per session: over it, RESOURCE_EXHAUSTED per part. This implementation gives buffers of
  // the client and commits with Push.
  virtual Result<std::unique_ptr<InPlacePush>> BeginPush(const Digest& fingerprint,
                                                         std::span<const PartToWrite> parts,
                                                         const PushOptions& options);

  // A hint: these blocks will be matched in about `needed_in` (at most 300 s). The node copies what
  // lies on disk to its host tier before then, as far as that costs nobody else more. Promises
  // nothing, takes no lease, ends with the session.
  virtual Result<PrefetchOutcome> Prefetch(const Digest& fingerprint,
                                           std::span<const BlockKey> keys, Duration needed_in,
                                           const CallOptions& options = {}) = 0;

  // Per key the fastest tier that holds the complete block. No lease, no promise.
  virtual Result<std::vector<std::optional<TierKind>>> Exists(const Digest& fingerprint,
                                                              std::span<const BlockKey> keys,
                                                              const CallOptions& options = {}) = 0;

  // Returns how long the lease now lives. NOT_FOUND: it has ended.
  virtual Result<Duration> RenewLease(const Lease& lease, Duration ttl,
                                      const CallOptions& options = {}) = 0;

  // OK when everything committed before is on the node's disk.
  virtual Status Flush(const CallOptions& options) = 0;
  virtual Result<NodeStats> Stat(const CallOptions& options = {}) = 0;
  virtual Result<std::unique_ptr<EventStream>> WatchEvents(const WatchOptions& options) = 0;

  virtual ClientStats GetStats() const = 0;
};

// Thread-safe. The namespaces of a node, for operators.
class AdminClient {
 public:
  virtual ~AdminClient() = default;
  virtual Result<std::vector<NamespaceInfo>> ListNamespaces(
      std::string_view tenant, const CallOptions& options = {}) = 0;  // "": all.
  virtual Result<DropResult> DropNamespace(const Digest& fingerprint,
                                           const CallOptions& options = {}) = 0;
  virtual Result<DropResult> DropTenant(std::string_view tenant,
                                        const CallOptions& options = {}) = 0;
  virtual Result<DropResult> BumpEpoch(const Digest& fingerprint,
                                       const CallOptions& options = {}) = 0;
};

}  // namespace cairn::client
