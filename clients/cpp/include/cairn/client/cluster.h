#pragma once
// A node's answers about its cluster, for operators and routers. Link Cairn::client; in the tree,
// cairn_client_grpc.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/client/connect.h"

namespace cairn::client {

// The message ClusterMember of proto/cairn/v1/cluster.proto, which describes the fields.
struct ClusterMember {
  std::string node_id = {};
  std::string address = {};
  uint64_t node_epoch = 0;
  uint64_t incarnation = 0;
  std::string host = {}, zone = {};
  std::string version = {};
  bool leaving = false;
  // For other members only.
  double heard_seconds = 0;
  bool same_view = false;
  bool same_bumps = false;
  bool skipped = false;
};

struct AbsentMember {
  std::string address = {};
  std::string reason = {};
};

struct ClusterNumbers {
  uint64_t waymarks = 0;
  uint64_t directory_waymarks = 0, directory_bytes = 0, directory_forgotten = 0;
  uint64_t announcing_members = 0;
  uint64_t announcements = 0, failed_announcements = 0;
  uint64_t found_blocks = 0, read_blocks = 0, read_bytes = 0, failed_reads = 0;
  uint64_t sent_bytes = 0;
};

// How one node sees the cluster.
struct ClusterMembers {
  std::string cluster = {};  // Empty: the node is alone.
  ClusterMember self = {};
  std::vector<ClusterMember> members = {};  // Without the node itself.
  std::vector<AbsentMember> absent = {};
  std::optional<ClusterMember> replaced_by = {};
  uint64_t view_digest = 0;
  uint64_t bumps_digest = 0;
  ClusterNumbers numbers = {};
};

// The part of a prompt that a node holds, from its first block on.
struct LocatedBlocks {
  std::string node_id = {};
  uint32_t blocks = 0;
  uint64_t bytes = 0;
  // How many of them are in memory. The others are on disk.
  uint32_t memory_blocks = 0;
  uint64_t memory_bytes = 0;
  double seconds = 0;  // Until the last byte could leave the node. 0: unknown.
};

struct ClusterLocations {
  // The node that was asked, and others that hold something: those with the most blocks first.
  std::vector<LocatedBlocks> nodes = {};
  uint64_t silent_members = 0;  // They may hold something, and did not answer in time.
};

// Thread-safe. Errors as those of CacheClient. UNIMPLEMENTED: a node of a version without clusters.
class ClusterClient {
 public:
  virtual ~ClusterClient() = default;
  virtual Result<ClusterMembers> Members(const CallOptions& options = {}) = 0;
  // 1 to 65536 keys. The node answers with what is known after half of the deadline. NOT_FOUND: the
  // node that was asked does not know the namespace.
  virtual Result<ClusterLocations> Locate(const Digest& fingerprint, std::span<const BlockKey> keys,
                                          const CallOptions& options = {}) = 0;
};

// As Connect, but without a session: for one node.
Result<std::unique_ptr<ClusterClient>> ConnectCluster(const ConnectOptions& options);

}  // namespace cairn::client
