#pragma once
// The client of a cache node. This is the short form. examples/cpp/get_and_push.cc is the whole
// program, and docs/program/cpp.md explains it:
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
// For the caller, every error of Match, Fetch and Push is a miss (next_action.h,
// docs/program/errors.md). A cache that is slow, wrong or not reachable never makes a request fail.
// A call ends at its deadline at the latest. After several failures in a row a circuit breaker
// answers UNAVAILABLE at once, so that later calls do not wait for their deadlines.
//
// A client may know several nodes (ConnectOptions::address). It uses one of them at a time, its
// home, and what this page calls "the node" is the home.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/client/client_stats.h"
#include "cairn/client/lease.h"
#include "cairn/client/types.h"
#include "cairn/common/next_use.h"
#include "cairn/common/rows.h"

namespace cairn::client {

struct MatchOptions {
  Duration deadline = std::chrono::milliseconds(50);
  Duration lease_ttl{0};                 // 0: the node's default (30 s). At most 600 s.
  bool lease = true;                     // False: only ask. The node promotes nothing.
  double prefill_tokens_per_second = 0;  // For the node's metric of saved seconds. 0: unknown.
  std::string trace = {};
  // Ids of nodes (NodeStats::node_id) that the caller knows to hold the blocks, for example the
  // node that a prefill worker pushed to. A node that belongs to a cluster asks them first. At most
  // 4, of 1 to 128 characters each. A match that names any goes over gRPC, and so do its bytes.
  std::vector<std::string> holders = {};
  // The next step of the conversation, for the node's choice of what it keeps. A hint that does not
  // come true soon counts nothing in this namespace; others never pay for it. Needs a lease.
  NextUse next = NextUse::kUnknown;
  // How long the node may wait for blocks that somebody writes now (reserved, or announced) before
  // it answers. It answers as soon as `wait_blocks` blocks match, or when the next one is written
  // by nobody. Not counted in `deadline`, which is for an answer without waiting. At most 600 s;
  // the node has a smaller bound of its own. A match that waits goes over gRPC. Get does not wait.
  Duration wait{0};
  uint32_t wait_blocks = 0;  // At most the number of keys. 0: all.
  // The caller computes what does not match, and pushes it. The lease, held also if nothing
  // matched, announces these blocks to matches that wait, until it is released. Needs a lease, and
  // goes over gRPC, as do bytes that are fetched with it. Get does not announce.
  bool announce = false;
  // For a namespace with pools: a match over these. `keys` has one key for each unit of the layout,
  // and the answer is MatchedPrefix::joint. `wait_blocks` and `announce` are about blocks of pool
  // 0. On the same-node path, the answer does not say in which tiers the blocks lie.
  JointQuestion joint = {};
};

// The fields of MatchedPrefix (cairn/common/kv/answers.h), and the lease on these blocks.
struct MatchOutcome : MatchedPrefix {
  // Held with MatchOptions::lease when matched_blocks > 0, or blocks were announced.
  Lease lease = {};
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
  // When no slice is completed for this long, the fetch ends with DEADLINE_EXCEEDED.
  Duration progress = std::chrono::seconds(1);
  Duration deadline = std::chrono::seconds(30);  // Limit for the whole fetch.
  std::stop_token cancel = {};  // A stop request ends the fetch soon, with CANCELLED.
  // False: the client does not compare the bytes with their hashes. Only for measurements, and for
  // readers that compare with SliceInfo::xxh3 themselves.
  bool verify = true;
  std::string trace = {};
};

// Pins lent bytes. As long as a hold exists, the node does not evict its blocks and does not use
// their memory again, even when the lease has ended. Thread-safe.
class LentHold {
 public:
  virtual ~LentHold() = default;
  // False after the session has ended: the node closed it, died, or wrote something that is not
  // valid. The bytes of a dead node stay as they were. A living node does not use the memory again
  // until the client hangs up, which the client does when its last hold is gone. But in both cases
  // nothing guarantees the bytes. A caller that computed something from lent bytes therefore calls
  // Pinned() afterwards. True: everything that it read before the call was right. False: it must
  // throw the result away, as after a miss. Costs a system call.
  virtual bool Pinned() const = 0;
};

// A slice in the memory of a GPU, which nobody has verified.
struct DeviceSlice {
  SliceInfo slice = {};
  uint64_t address = 0;  // In the GPU's address space of this process. At any byte.
};
enum class DeviceRead : uint8_t {
  kGood = 0,    // The bytes match SliceInfo::xxh3, and the reader has them.
  kWrong = 1,   // They do not match, or no encoder writes such bytes.
  kUnread = 2,  // The reader could not look at them.
};

// Receives what a fetch brings. Only the thread that called Fetch calls it, while that thread is in
// Fetch. Slices come in any order.
class FetchSink {
 public:
  virtual ~FetchSink() = default;

  // Returns where the bytes of the slice shall go: a span of slice_bytes bytes that stays valid
  // until OnSlice or OnBlockFailed is called for the slice, or until Fetch returns. With an empty
  // span the bytes go to Pieces, and when Pieces is empty too, to a buffer of the client. Before
  // OnSlice the bytes in the span mean nothing. A span of another size ends the fetch with
  // INTERNAL.
  virtual std::span<std::byte> Destination(const SliceInfo&) { return {}; }

  // When Destination gave no span: returns pieces that follow each other, slice_bytes long in
  // total, under the same rules as Destination. The client asks for pieces only when the bytes come
  // out of the node's memory and one pass can copy them there.
  virtual std::vector<std::span<std::byte>> Pieces(const SliceInfo&) { return {}; }

  // A whole slice whose bytes match its hash. `data` is the span that Destination gave, or the
  // client's buffer, which is valid during the call. `data` is empty when the bytes are in the
  // spans that Pieces gave. A status other than OK ends the fetch, and Fetch returns that status.
  virtual Status OnSlice(const SliceInfo& slice, std::span<const std::byte> data) = 0;

  // The block will not be complete. kCorrupt: bytes did not match their hash, here or at the node.
  // More slices of the block may still come. Called at most once per block.
  virtual void OnBlockFailed(uint32_t block, MissReason reason) = 0;

  // True: this reader can use bytes in place. The client asks once per fetch. A client on the same
  // machine as its node then calls OnLentSlice for slices that lie in the node's memory, instead of
  // Destination, Pieces and OnSlice. Every other slice still comes through those three: from the
  // network, from disk without passing through the node's memory, and from memory that a writer of
  // the tenant could still change (blocks that were pushed in place), which the client copies.
  virtual bool WantsLent() const { return false; }

  // A whole verified slice in memory that is shared with the node. No other process can write to it
  // (the kernel seals it). The memory is mapped read-only and valid as long as `hold` exists. All
  // slices of one part have the same hold. They lie as cairn/common/part.h says: in layer order
  // without gaps. The slice of layer i begins where the slice of layer i - 1 ends, and a part that
  // covers all layers is one contiguous run. As long as `hold` exists the node cannot use this
  // memory for anything else, so release it soon, or copy the bytes.
  virtual Status OnLentSlice(const SliceInfo& slice, std::span<const std::byte> data,
                             std::shared_ptr<const LentHold> hold) {
    (void)hold;
    return OnSlice(slice, data);
  }

  // The uuid of the GPU in whose memory this reader can read; empty: of none. The client asks once
  // per fetch. A client on the same machine as its node, whose ConnectOptions::devices imports that
  // GPU's memory, then calls OnDeviceSlices for slices that lie there. For other readers it copies
  // such slices to the host, verifies them, and delivers them as all others.
  virtual std::string WantsDevice() const { return {}; }

  // Slices of one layer, or of some blocks of it. The reader verifies them: every client of the
  // tenant can write there at any time. So it hashes what it then uses, not what it looks at again
  // later. Returns what became of each, in order. The client fetches blocks that are not kGood
  // another way, and tells the node of those that are kWrong. The addresses are valid during the
  // call. A status other than OK ends the fetch, and Fetch returns that status.
  virtual Result<std::vector<DeviceRead>> OnDeviceSlices(std::span<const DeviceSlice> slices) {
    return std::vector<DeviceRead>(slices.size(), DeviceRead::kUnread);
  }
};

// Receives what a fetch of rows brings. Only the thread that called FetchRows calls it, while that
// thread is in FetchRows. Groups come in any order.
class RowSink {
 public:
  virtual ~RowSink() = default;

  // The rows of group number `group` of the call, in the form of cairn/common/rows.h. They are
  // verified: the slice that they are from matched its writer's hash, and these are the rows that
  // were asked for. `rows` is valid during the call. A status other than OK ends the fetch, and
  // FetchRows returns it.
  virtual Status OnRows(size_t group, const RowsInfo& info, std::span<const std::byte> rows) = 0;

  // The group does not come. kCorrupt: bytes did not match their hash, here or at the node.
  virtual void OnRowsFailed(size_t group, MissReason reason) = 0;
};

// A sealed part (cairn/common/part.h) and where it belongs.
struct PartToPush {
  BlockKey key = {};
  std::optional<BlockKey> parent = {};  // nullopt: a root.
  uint64_t first_position = 0;          // Position of the block's first token, in tokens.
  format::PartRect rect = {};
  std::span<const std::byte> bytes = {};
  // Keeps `bytes` alive. With a hold nothing is copied, and the network may use the bytes until
  // some time after Push has returned. Without a hold Push copies the bytes, and they must stay
  // valid until it returns.
  std::shared_ptr<const void> hold = {};
  double compute_seconds = 0;  // The time that it took to compute the block. 0: unknown.
};

struct PushOptions {
  Duration deadline = std::chrono::seconds(10);
  std::optional<Duration> room_deadline = {};  // For room, in BeginPush. nullopt: `deadline`.
  Duration reservation_ttl{0};                 // 0: the node's default (30 s).
  std::string trace = {};
};

// A part that the caller is about to write.
struct PartToWrite {
  BlockKey key = {};
  std::optional<BlockKey> parent = {};  // nullopt: a root.
  uint64_t first_position = 0;          // Position of the block's first token, in tokens.
  format::PartRect rect = {};
  uint64_t bytes = 0;          // Size of the sealed part: format::PartBytes.
  double compute_seconds = 0;  // The time that it took to compute the block. 0: unknown.
};

// Room for parts, which the caller fills in place and then commits. On the same machine as the node
// the room is the node's own memory, so filling it is the only copy. Otherwise the room is a buffer
// of the client. Not thread-safe, but several threads may fill the rooms. The destructor gives the
// room back if Commit was not called. Must not outlive its client.
class InPlacePush {
 public:
  struct Slot {
    Status status = {};              // OK: write the part into `room`, or the node has it.
    std::span<std::byte> room = {};  // PartToWrite::bytes long, 64-byte aligned. Empty when the
                                     // status is not OK, and when the node has the part already.
  };
  virtual ~InPlacePush() = default;
  // One slot per part, in order. The rooms are valid until Commit or until this object is
  // destroyed. Before they are written, their bytes mean nothing.
  virtual std::span<const Slot> slots() const = 0;
  virtual Path path() const = 0;
  // Stores the parts in the rooms. Each room must hold a sealed part (format::SealPart,
  // format::SealCopy). Returns one status per part, in order, as CacheClient::Push does. A slot
  // that was not OK keeps its status. Call it at most once.
  virtual Result<std::vector<Status>> Commit() = 0;
};

struct WatchOptions {
  std::optional<Digest> fingerprint = {};  // nullopt: all namespaces.
  bool snapshot = false;  // Starts with a kStored per stored block, then kSnapshotEnd.
  // How long a client that names a tenant waits for its session, without which the node would tell
  // it events of all tenants.
  Duration deadline = std::chrono::seconds(10);
};

// The events of a node. Not thread-safe, except for Cancel. The destructor ends the watch. A client
// of several nodes watches its home: when it takes another home, the watch ends with UNAVAILABLE.
class EventStream {
 public:
  virtual ~EventStream() = default;
  // Returns the next event, or nullopt when no event came within `wait`. UNAVAILABLE: the
  // connection broke. NOT_FOUND: the client's session had ended: watch again. RESOURCE_EXHAUSTED:
  // this watcher was too slow, start again with a snapshot. CANCELLED: Cancel was called.
  virtual Result<std::optional<CacheEvent>> Next(Duration wait) = 0;
  // Any thread may call it.
  virtual void Cancel() = 0;
};

// Thread-safe.
class CacheClient {
 public:
  virtual ~CacheClient() = default;

  // Registers the namespace at the node. INVALID_ARGUMENT: the spec is not valid. In every other
  // case, also after an error, the client remembers the spec and opens the namespace whenever a
  // session begins. A worker that starts before its node therefore only needs Fingerprint(spec).
  virtual Result<OpenedNamespace> OpenNamespace(const NamespaceSpec& spec,
                                                const CallOptions& options = {},
                                                const NamespaceOptions& how = {}) = 0;

  // Finds the longest complete prefix of `keys` (1 to 65536 keys) at the node. A miss is an OK
  // answer with matched_blocks = 0.
  virtual Result<MatchOutcome> Match(const Digest& fingerprint, std::span<const BlockKey> keys,
                                     const MatchOptions& options) = 0;

  // Brings slices of leased blocks to `sink` and verifies each. OK: the node has sent everything
  // that it could, and the sink has got a report of each block that failed. After an error, the
  // slices that OnSlice has already received are good. NOT_FOUND: the lease or its session has
  // ended.
  virtual Status Fetch(const Lease& lease, const FetchRange& range, FetchSink& sink,
                       const FetchOptions& options) = 0;

  // Brings rows of one layer of leased blocks to `sink`, and verifies them. `layout`: of the
  // namespace of the lease (RowLayout::Of). `groups`: as RowLayout::Check wants them, else
  // INVALID_ARGUMENT; their masks are borrowed for the call. OK: each group was given to OnRows or
  // to OnRowsFailed, once. After an error, the groups that OnRows has received are good, and no
  // more come. NOT_FOUND: the lease or its session has ended. FetchOptions::verify is not looked
  // at.
  //
  // Over gRPC the node compares a slice with its writer's hash once for each lease, and hashes the
  // rows that it sends (docs/inside/formats/rows.md). On the same-node path the client takes the
  // rows out of the node's memory, and compares the slice itself, once for each lease. This
  // implementation, and one whose node knows no rows, fetches whole slices.
  virtual Status FetchRows(const Lease& lease, const RowLayout& layout, uint32_t layer,
                           std::span<const RowGroup> groups, RowSink& sink,
                           const FetchOptions& options);

  // Match, and then Fetch of everything that it found, for readers that want the bytes in any case.
  // Over gRPC this takes one round trip instead of two. The outcome holds no lease: the blocks that
  // it found are leased until the call ends. `match.deadline` is for the match, and
  // `fetch.deadline` for the whole call. `match.lease` and `match.lease_ttl` are ignored. The whole
  // call may fail after slices were delivered: those slices are good.
  virtual Result<MatchOutcome> Get(const Digest& fingerprint, std::span<const BlockKey> keys,
                                   const LayerRange& layers, FetchSink& sink,
                                   const MatchOptions& match, const FetchOptions& fetch);

  // Stores parts. Returns one status per part, in order. The status is OK too for a part that the
  // node already has. Parts that could not be sent give their room back. After an error of the
  // whole call, no part is known to be stored.
  virtual Result<std::vector<Status>> Push(const Digest& fingerprint,
                                           std::span<const PartToPush> parts,
                                           const PushOptions& options) = 0;

  // Takes room for parts, which the caller then writes in place. PushOptions::deadline applies to
  // this call and, separately, to Commit. The errors are those of Push. On the same-node path the
  // node limits the bytes of a session: parts beyond the limit get RESOURCE_EXHAUSTED. This
  // implementation gives buffers of the client and commits with Push.
  virtual Result<std::unique_ptr<InPlacePush>> BeginPush(const Digest& fingerprint,
                                                         std::span<const PartToWrite> parts,
                                                         const PushOptions& options);

  // A hint: the caller expects to match these blocks in about `needed_in` (at most 300 s). Before
  // that time the node copies the blocks that lie on disk to its host tier, unless that would cost
  // other users more. A hint promises nothing and takes no lease. It ends with the session.
  virtual Result<PrefetchOutcome> Prefetch(const Digest& fingerprint,
                                           std::span<const BlockKey> keys, Duration needed_in,
                                           const CallOptions& options = {}) = 0;

  // Returns, for each key, the fastest tier that holds the complete block. Takes no lease and
  // promises nothing.
  virtual Result<std::vector<std::optional<TierKind>>> Exists(const Digest& fingerprint,
                                                              std::span<const BlockKey> keys,
                                                              const CallOptions& options = {}) = 0;

  // Returns the remaining time of the lease. NOT_FOUND: the lease has ended.
  virtual Result<Duration> RenewLease(const Lease& lease, Duration ttl,
                                      const CallOptions& options = {}) = 0;

  // Waits until everything that was committed before the call is on the node's disk.
  virtual Status Flush(const CallOptions& options) = 0;
  virtual Result<NodeStats> Stat(const CallOptions& options = {}) = 0;
  virtual Result<std::unique_ptr<EventStream>> WatchEvents(const WatchOptions& options) = 0;

  virtual ClientStats GetStats() const = 0;
};

// Lists and drops the namespaces of a node, for operators. Thread-safe.
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
  // Makes the node end as SIGTERM does; returns before it ends. False: it drained already.
  virtual Result<bool> Drain(const CallOptions& options = {}) = 0;
};

}  // namespace cairn::client
