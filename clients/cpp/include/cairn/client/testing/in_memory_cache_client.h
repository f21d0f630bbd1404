#pragma once
// A cache node and its client in one object, for tests of code that uses a client. It has no
// network and no threads of its own.

#include <cstdint>
#include <memory>
#include <optional>

#include "cairn/client/cache_client.h"

namespace cairn::client::testing {

// The faults that the client shows. A number of slices is counted over all blocks, from the start
// of each Fetch.
struct Faults {
  Status every_call = {};  // Not OK: each call ends with it at once (no node there).
  bool hang = false;  // Each call waits for its deadline (Fetch: progress), cancel or SetFaults,
                      // then DEADLINE_EXCEEDED or CANCELLED.
  Status push = {};   // Not OK: the result of each pushed part.
  std::optional<uint64_t> break_fetch_after = {};  // Slices, then UNAVAILABLE (the node died).
  std::optional<uint64_t> hang_fetch_after = {};   // Slices, then as with `hang`.
  // Bytes of this block do not match their hash: OnBlockFailed(kCorrupt), and no slice of it comes.
  std::optional<uint32_t> corrupt_block = {};
  // One byte of each slice of this block is changed and the hash computed again, so that nobody can
  // notice.
  std::optional<uint32_t> wrong_block = {};
  // This block disappears between Match and Fetch: OnBlockFailed(kEvicted).
  std::optional<uint32_t> evict_block = {};
};

// Thread-safe: tests with several workers share one. Blocks are never evicted. The client checks
// parts as a node does (format::VerifyPart, and the rectangle and the slice sizes against the
// layout). A block is complete when its parts cover the grid. Sinks that want lent slices get them.
// Leases are counted, but they pin nothing, and only Restart ends them early.
class InMemoryCacheClient final : public CacheClient {
 public:
  InMemoryCacheClient();
  ~InMemoryCacheClient() override;

  // Replaces the faults and wakes the calls that hang.
  void SetFaults(Faults faults);
  // Waits until some call hangs.
  void WaitForHang();
  // Acts as if the node died and came back with everything on its disk: leases are gone, namespaces
  // and blocks stay.
  void Restart();
  // Drops all blocks but keeps the namespaces.
  void Clear();
  uint64_t leases() const;           // Leases held now.
  uint64_t complete_blocks() const;  // In all namespaces.

  // Its blocks live forever, whatever `how` says.
  Result<OpenedNamespace> OpenNamespace(const NamespaceSpec& spec, const CallOptions& options = {},
                                        const NamespaceOptions& how = {}) override;
  Result<MatchOutcome> Match(const Digest& fingerprint, std::span<const BlockKey> keys,
                             const MatchOptions& options) override;
  Status Fetch(const Lease& lease, const FetchRange& range, FetchSink& sink,
               const FetchOptions& options) override;
  Result<std::vector<Status>> Push(const Digest& fingerprint, std::span<const PartToPush> parts,
                                   const PushOptions& options) override;
  // Everything lies in the host tier: nothing is ever queued.
  Result<PrefetchOutcome> Prefetch(const Digest& fingerprint, std::span<const BlockKey> keys,
                                   Duration needed_in, const CallOptions& options = {}) override;
  // The rooms are buffers. Faults apply to this call and to Commit.
  Result<std::unique_ptr<InPlacePush>> BeginPush(const Digest& fingerprint,
                                                 std::span<const PartToWrite> parts,
                                                 const PushOptions& options) override;
  Result<std::vector<std::optional<TierKind>>> Exists(const Digest& fingerprint,
                                                      std::span<const BlockKey> keys,
                                                      const CallOptions& options = {}) override;
  Result<Duration> RenewLease(const Lease& lease, Duration ttl,
                              const CallOptions& options = {}) override;
  Status Flush(const CallOptions& options) override;
  Result<NodeStats> Stat(const CallOptions& options = {}) override;
  // UNIMPLEMENTED: there are no events.
  Result<std::unique_ptr<EventStream>> WatchEvents(const WatchOptions& options) override;
  ClientStats GetStats() const override;

 private:
  struct Store;
  std::shared_ptr<Store> store_;  // Shared with leases, which may outlive the client.
};

}  // namespace cairn::client::testing
