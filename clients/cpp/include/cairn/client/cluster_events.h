#pragma once
// The events of all members of a cluster, for routers that keep an index of who holds what. Link
// Cairn::client; in the tree, cairn_client_grpc.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/client/cluster.h"
#include "cairn/client/connect.h"

namespace cairn::client {

// An index does this with each kind of event:
//
//   kSnapshotBegins   remember what it has of this member as old
//   kEvent            as for a single node
//   kSnapshotEnds     forget what is still old: it has gone
//   kMemberLost       forget all of this member, and do not send requests there
//
// A snapshot comes at the beginning, and whenever something may have been missed: the stream broke,
// the node restarted, or a number in the sequence was left out. The events of one member come in
// their order.
struct MemberEvent {
  enum class Kind : uint8_t { kSnapshotBegins, kSnapshotEnds, kEvent, kMemberLost };
  Kind kind = Kind::kEvent;
  std::string node_id = {};
  std::string address = {};
  CacheEvent event = {};  // The event of kEvent. Never kSnapshotEnd.
};

struct ClusterWatchOptions {
  std::optional<Digest> fingerprint = {};      // nullopt: all namespaces.
  Duration refresh = std::chrono::seconds(5);  // Between two looks at the list of members.
  // A member whose events cannot be obtained for this long is lost. It is tried further all the
  // same.
  Duration lost_after = std::chrono::seconds(5);
  // Events that wait for Next. When this many wait, the streams are not read, and a node that has
  // to wait for long makes its stream begin with a snapshot again.
  size_t queue = 65'536;
};

// Asks nodes, for ClusterEvents. Thread-safe. A test may give another one.
class ClusterTransport {
 public:
  virtual ~ClusterTransport() = default;
  // UNIMPLEMENTED: a node of a version without clusters.
  virtual Result<ClusterMembers> Members(const std::string& address, Duration limit) = 0;
  virtual Result<std::unique_ptr<EventStream>> Watch(const std::string& address,
                                                     const WatchOptions& options) = 0;
};

// Follows every member that a node of the cluster names. Any thread may call it, one at a time.
class ClusterEvents {
 public:
  virtual ~ClusterEvents() = default;
  // The next event, or nullopt when none came within `wait`. CANCELLED: Cancel was called.
  virtual Result<std::optional<MemberEvent>> Next(Duration wait) = 0;
  // Wakes Next. Any thread, at any time.
  virtual void Cancel() = 0;
  // Ids of the members that are followed, lost ones included.
  virtual std::vector<std::string> members() const = 0;
};

// `connection.address`: one or more nodes with commas between them, from which it learns about the
// others. Returns at once. A node that is alone, or of a version without clusters, is followed
// under its address if it does not tell its id. INVALID_ARGUMENT names what cannot be used.
Result<std::unique_ptr<ClusterEvents>> WatchCluster(const ConnectOptions& connection,
                                                    const ClusterWatchOptions& options = {});
// The same over another transport, which it owns. `seeds`: the addresses.
std::unique_ptr<ClusterEvents> WatchCluster(std::unique_ptr<ClusterTransport> transport,
                                            std::vector<std::string> seeds,
                                            const ClusterWatchOptions& options = {});

}  // namespace cairn::client
