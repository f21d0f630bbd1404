#pragma once
// Indexes of contexts at the cache node (docs/methods/index-objects.md). Clusters of keys take long
// to make, and a context that many requests share has the same ones each time. So they are made
// once, and stored as blocks of a namespace of their own, one a layer. Whoever opens the context
// later fetches them, on any worker.
//
//   namespace   that of the KV, but opaque, with the index's form in the field `numerics`
//   key         SHA-256 of the context's last block, and of the layer
//
// The node holds and evicts them as any other blocks, and counts them by namespace. An index only
// ranks rows: without it, or with one that does not fit, it is made again.

#include <span>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/common/clock.h"
#include "cairn/common/namespace_spec.h"
#include "services/worker/reading/read_policy.h"
#include "services/worker/reading/row_index.h"

namespace cairn::worker {

// Thread-safe.
class IndexStore {
 public:
  struct Options {
    // How long to wait for a node that is away.
    Duration connect_deadline = std::chrono::milliseconds(100);
    Duration match_deadline = std::chrono::milliseconds(500);
    Duration deadline = std::chrono::seconds(5);  // Limit for a fetch or push.
  };

  // Whether the policy's index is worth keeping: others are made as fast as they are fetched.
  static bool Keeps(const ReadPolicy& policy);

  // `kv`: the namespace of the contexts' KV, with a native layout and the recipe raw. Registers the
  // namespace of the indexes at the node, or, if it is away, when it comes. `client` must outlive
  // the store. REQUIRES: Keeps(policy).
  IndexStore(client::CacheClient& client, const NamespaceSpec& kv, const ReadPolicy& policy,
             const Options& options);

  // Loads the index, which is new, of the context that ends with this block. False: the node has
  // not all of it, or not in time, or what came does not fit. The index is then unspecified.
  bool Fetch(const BlockKey& last_block, RowIndex& index, const std::string& trace) const;
  // Gives the node a complete index, which took `seconds` to make. False: it did not take all
  // of it.
  bool Push(const BlockKey& last_block, const RowIndex& index, double seconds,
            const std::string& trace) const;

 private:
  std::vector<BlockKey> Keys(const BlockKey& last_block) const;

  client::CacheClient& client_;
  const Options options_;
  const uint32_t layers_;
  const NamespaceSpec spec_;
  const Digest fingerprint_;
};

}  // namespace cairn::worker
