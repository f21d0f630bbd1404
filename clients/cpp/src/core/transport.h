#pragma once
// The paths to a node, as the client sees them.
//
//   TransportClient ──► NearTransport   serves what it can: same-node sessions
//                  └──► MainTransport   serves everything, and carries the session itself
//
// The client asks the near path first. A path that cannot serve a call now answers nullopt, and the
// client asks the main one, with the same session and the same lease.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cairn/client/cache_client.h"
#include "clients/cpp/src/core/known_namespace.h"
#include "clients/cpp/src/fetch_counts.h"

namespace cairn::client {

// A node's answer when it opens a session. Immutable.
struct SessionInfo {
  std::string id = {};
  std::string node_id = {};
  std::string host = {}, zone = {};  // Where the node is. Empty: it does not say.
  uint64_t node_epoch = 0;
  uint32_t max_frame_bytes = 0;   // Limit for one frame of a Push.
  std::string local_socket = {};  // Empty: the node has no same-node sessions.
  std::string local_token = {};
};
// One object per session: two sessions differ in their address.
using SessionPtr = std::shared_ptr<const SessionInfo>;

// The context of a call over a path. The session outlives the call.
struct TransportCall {
  const SessionPtr& session;
  TimePoint deadline;
};

struct Matched {
  MatchOutcome outcome = {};  // Without its lease.
  uint64_t lease = 0;         // Id. 0: none.
  Duration lease_ttl{0};      // Counted from before the match was sent.
};

// How a fetch over one path ended. The slices that `counts` counts were delivered.
struct FetchReport {
  Status status = {};
  FetchCounts counts = {};
  bool node_answers = false;  // Something came: the node is alive and sends.
  // Ranges [begin, end) of blocks that were not delivered whole and that another path may bring.
  std::vector<std::pair<uint32_t, uint32_t>> rest = {};
  // Slices of these blocks that were delivered before their block was given up.
  std::vector<SliceInfo> delivered_of_rest = {};
};

// Rows of one layer, checked (RowLayout::Check). Borrowed for the call.
struct RowsWanted {
  const RowLayout& layout;
  uint32_t layer = 0;
  std::span<const RowGroup> groups = {};
};

// How a fetch of rows over one path ended.
struct RowReport {
  Status status = {};
  FetchCounts counts = {};
  bool node_answers = false;  // Something came.
  // Numbers of groups that neither came nor failed, and that another path may bring. Ascending.
  std::vector<size_t> rest = {};
};

// How a match and a fetch in one call ended.
struct GetReport {
  std::optional<MatchOutcome> outcome = {};  // nullopt: the fetch failed before the answer came.
  FetchReport fetch = {};
};

struct PushReport {
  Status status = {};  // Not OK: the path failed, and parts without a result were not tried.
  std::vector<Status> results = {};  // The results of the parts that were tried, in order.
};

using TierList = std::vector<std::optional<TierKind>>;

// One path to a node. Thread-safe. Calls block, at most until their deadline. nullopt: this path
// cannot serve the call now.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual Path path() const = 0;

  virtual std::optional<Result<Matched>> Match(const TransportCall& call, const Digest& fingerprint,
                                               std::span<const BlockKey> keys,
                                               const MatchOptions& options) = 0;
  virtual std::optional<FetchReport> Fetch(const LeaseInfo& lease, const FetchRange& range,
                                           FetchSink& sink, const FetchOptions& options,
                                           TimePoint deadline) = 0;
  // nullopt: this path knows no rows, or the lease is not its own. UNIMPLEMENTED: the node does not
  // know them.
  virtual std::optional<RowReport> FetchRows(const LeaseInfo&, const RowsWanted&, RowSink&,
                                             const FetchOptions&, TimePoint /*deadline*/) {
    return std::nullopt;
  }
  // RESOURCE_EXHAUSTED for a part: this path has no room for it.
  virtual std::optional<PushReport> Push(const TransportCall& call, const Digest& fingerprint,
                                         std::span<const PartToPush> parts,
                                         const PushOptions& options) = 0;
  virtual std::optional<Result<TierList>> Exists(const TransportCall& call,
                                                 const Digest& fingerprint,
                                                 std::span<const BlockKey> keys,
                                                 const CallOptions& options) = 0;
  // Returns the time that the node grants.
  virtual std::optional<Result<Duration>> Renew(const LeaseInfo& lease, Duration ttl,
                                                const CallOptions& options, TimePoint deadline) = 0;
  // Gives the lease back without waiting. False: it is not one of this path.
  virtual bool Release(const LeaseInfo& lease) = 0;
};

// The calls of a push in place to its client.
struct InPlaceHooks {
  // Makes room for parts that the path has none for. Empty: the node's refusal stays.
  std::function<std::unique_ptr<InPlacePush>(std::span<const PartToWrite>)> rest = {};
  // Called after a commit. Empty: nobody counts.
  std::function<void(uint64_t parts, uint64_t bytes)> committed = {};
};

// A path that is there only sometimes. Thread-safe.
class NearTransport : public Transport {
 public:
  struct State {
    bool open = false;
    std::string reason = {};  // Why not.
    uint64_t sessions = 0;    // Opened so far.
  };
  virtual State GetState() const = 0;
  // UNAVAILABLE, which says why the path does not serve the calls.
  virtual Status Unavailable() const = 0;

  // A namespace that calls will name.
  virtual void Remember(const Digest& fingerprint, std::string_view tenant) = 0;
  // Opens the path for the namespace if it can, so that the first call does not pay for it.
  virtual void Prepare(const TransportCall& call, const Digest& fingerprint) = 0;
  // Gives everything back if the node has ended the path.
  virtual void CheckAlive() = 0;
  // Room in the node's own memory.
  virtual std::optional<Result<std::unique_ptr<InPlacePush>>> BeginPush(
      const TransportCall& call, const Digest& fingerprint, std::span<const PartToWrite> parts,
      const PushOptions& options, const InPlaceHooks& hooks) = 0;
};

// The connection in which a session lives: the session ends with it. One thread at a time uses it,
// but any thread may call Cancel.
class SessionLink {
 public:
  virtual ~SessionLink() = default;
  // Asks the node for a session and waits for it. An error leaves nothing open.
  virtual Result<SessionInfo> Open() = 0;
  // False once the session has ended. Does not wait. `thorough`: a call has failed, so look at
  // everything that came.
  virtual bool IsOpen(bool thorough) = 0;
  // True if the node has said, in what IsOpen has read, that it is shutting down.
  virtual bool IsDraining() const { return false; }
  // Ends the session, or what is left of it. Returns why the node ended it.
  virtual Status Close() = 0;
  // While there is no session: returns at `until` at the latest.
  virtual void Wait(TimePoint until) = 0;
  // Ends what the other calls wait for, for good.
  virtual void Cancel() = 0;
};

// The path that is always there: it answers every call, never with nullopt. Thread-safe.
class MainTransport : public Transport {
 public:
  virtual SessionLink& link() = 0;
  // Does the work that is due from time to time. Does not wait.
  virtual void Look() = 0;

  virtual Result<OpenedNamespace> OpenNamespace(const NamespaceSpec& spec,
                                                const NamespaceOptions& how,
                                                const CallOptions& options, TimePoint deadline) = 0;
  // Match and Fetch of everything found, in one round trip. The answer of the match comes by
  // `call.deadline`, and everything by `deadline`. nullopt: this node cannot do that.
  virtual std::optional<GetReport> Get(const TransportCall& call, const Digest& fingerprint,
                                       std::span<const BlockKey> keys, const LayerRange& layers,
                                       FetchSink& sink, const MatchOptions& match,
                                       const FetchOptions& fetch, TimePoint deadline) = 0;
  virtual Result<PrefetchOutcome> Prefetch(const TransportCall& call, const Digest& fingerprint,
                                           std::span<const BlockKey> keys, Duration needed_in,
                                           const CallOptions& options) = 0;
  virtual Status Flush(const CallOptions& options, TimePoint deadline) = 0;
  virtual Result<NodeStats> Stat(const CallOptions& options, TimePoint deadline) = 0;
  // `session` may be nullptr: the watch is then nobody's in particular.
  virtual Result<std::unique_ptr<EventStream>> WatchEvents(const SessionPtr& session,
                                                           const WatchOptions& options) = 0;
  // Leases that were left to expire.
  virtual uint64_t dropped_releases() const = 0;
};

}  // namespace cairn::client
