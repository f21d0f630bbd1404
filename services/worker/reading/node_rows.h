#pragma once
// Rows of a context from the cache node that has its blocks (CacheClient::FetchRows): verified,
// over gRPC or from the node's memory on the same machine.

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/common/clock.h"
#include "cairn/common/rows.h"
#include "cairn/common/status.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/reading/row_source.h"

namespace cairn::worker {

// Gather waits for the node: BackgroundRows runs it on another thread than the one that computes.
// One thread.
class NodeRows final : public RowSource {
 public:
  struct Options {
    Duration match_deadline = std::chrono::milliseconds(500);
    Duration progress = std::chrono::seconds(1);  // Between two pieces of a fetch.
    Duration deadline = std::chrono::seconds(5);  // Limit for a gather.
    Duration lease_ttl = std::chrono::seconds(60);
  };
  // Leases the blocks `keys`, all of them. `spec`: of a namespace with the recipe raw, whose layout
  // is `kv`. `client` and `clock` must outlive it. NOT_FOUND: the node has not all of them. Other
  // errors: those of the functions RowLayout::Of and CacheClient::Match.
  static Result<std::unique_ptr<NodeRows>> Hold(client::CacheClient& client, const Clock& clock,
                                                const NamespaceSpec& spec, const KvLayout& kv,
                                                const Digest& fingerprint,
                                                std::span<const BlockKey> keys,
                                                const Options& options, std::string trace);
  std::shared_ptr<RowGather> Gather(RowRequest request) override;

 private:
  NodeRows(client::CacheClient& client, const Clock& clock, RowLayout layout, const KvLayout& kv,
           client::Lease lease, const Options& options, std::string trace);
  void Renew();

  client::CacheClient& client_;
  const Clock& clock_;
  const RowLayout layout_;
  const KvLayout kv_;
  client::Lease lease_;
  const Options options_;
  const std::string trace_;
};

}  // namespace cairn::worker
