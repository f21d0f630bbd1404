#pragma once
// A cache node and its client in one object, for tests of what uses a client. No network, no
// threads of its own.

#include <cstdint>
#include <memory>
#include <optional>

#include "cairn/client/cache_client.h"

namespace cairn::client::testing {

// What goes wrong. Fetch counts slices over all blocks from the start of each Fetch.
struct Faults {
  Status every_call = {};  // Not OK: each call ends with it at once (a node that is away).
  bool hang = false;  // Each call waits for its deadline (Fetch: progress), cancel or SetFaults,
                      // then DEADLINE_EXCEEDED or CANCELLED.
  Status push = {};   // Not OK: result of each part pushed.
  std::optional<uint64_t> break_fetch_after = {};  // Slices; then UNAVAILABLE (the node died).
  std::optional<uint64_t> hang_fetch_after = {};   // Slices; then as `hang`.
  // Its bytes fail their hash: OnBlockFailed(kCorrupt), no slice of it.
  std::optional<uint32_t> corrupt_block = {};
  // One byte of each slice is changed and the hash recomputed: nobody can notice.
  std::optional<uint32_t> wrong_block = {};
  // Vanishes between Match and Fetch: OnBlockFailed(kEvicted).
  std::optional<uint32_t> evict_block = {};
};

// Thread-safe; tests with several workers share one. Blocks are never evicted. Parts are checked as
// a node checks them (format::VerifyPart, rectangle and slice sizes against the layout); a block is
// complete when its parts cover the grid. Slices are lent to sinks that want that. Leases count but
// do not pin and do not expire, except by Restart.
class InMemoryCacheClient final : public CacheClient {
 public:
  InMemoryCacheClient();
  ~InMemoryCacheClient() override;

  // Replaces the faults and wakes what hangs.
  void SetFaults(Faults faults);
  // Until some call hangs.
  void WaitForHang();
  // As if the node died and came back with what it had on disk: leases are gone, namespaces and
  // blocks stay.
  void Restart();
  // Drops all blocks, not the namespaces.
  void Clear();
  uint64_t leases() const;           // Held now.
  uint64_t complete_blocks() const;  // Of all namespaces.

  Result<OpenedNamespace> OpenNamespace(const NamespaceSpec& spec,
                                        const CallOptions& options = {}) override;
  Result<MatchOutcome> Match(const Digest& fingerprint, std::span<const BlockKey> keys,
                             const MatchOptions& options) override;
  Status Fetch(const Lease& lease, const FetchRange& range, FetchSink& sink,
               const FetchOptions& options) override;
  Result<std::vector<Status>> Push(const Digest& fingerprint, std::span<const PartToPush> parts,
                                   const PushOptions& options) override;
  // Everything lies in the host tier: nothing is ever queued.
  Result<PrefetchOutcome> Prefetch(const Digest& fingerprint, std::span<const BlockKey> keys,
                                   Duration needed_in, const CallOptions& options = {}) override;
  // The rooms are buffers; faults hit this call and Commit.
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
