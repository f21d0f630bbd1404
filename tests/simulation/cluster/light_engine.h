#pragma once
// An engine without tiers, for simulations of many nodes: blocks are numbers in memory, from which
// their bytes are made when somebody reads them.

#include <deque>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "tests/simulation/cluster/simulated_engine.h"

namespace cairn::testing {

// The bytes of a block: its key, its stamp, filling, and the hash of all that. The stamp is the
// digest of the bumps that its writer knew.
std::vector<std::byte> LightBytes(const BlockKey& key, uint64_t stamp, size_t size);

// All in one thread. Blocks that have no room push out the least recently used.
class LightEngine final : public SimulatedEngine,
                          public cache::CacheEngine,
                          public cache::PeerEngine {
 public:
  struct Options {
    size_t capacity_blocks = 1000;
    size_t block_bytes = 256;
    size_t events = 65536;      // That a watcher may lag behind.
    size_t reads_at_once = 16;  // Reads of one request, from a source.
    Duration lookup_patience = std::chrono::milliseconds(30);
    Duration read_patience = std::chrono::seconds(1);
  };
  LightEngine(Options options, const Clock* clock, cache::BlockSource* source, uint64_t seed,
              TellWrong wrong);
  ~LightEngine() override;

  // --- SimulatedEngine

  void Load(const LightDisk& disk);
  cache::CacheEngine& cache() override { return *this; }
  void Know(const SimulatedNamespace& ns) override {
    namespaces_[ns.fingerprint] = ns.spec.layout.block_tokens;
  }
  void Store(const SimulatedNamespace& ns, std::span<const BlockKey> keys) override;
  void Get(const SimulatedNamespace& ns, std::vector<BlockKey> keys, Done done) override;
  void Close() override { closed_ = true; }
  SimulatedDisk Save(bool power_loss) const override;
  bool Has(const Digest& fingerprint, const BlockKey& key) override {
    return blocks_.contains({fingerprint, key});
  }
  uint32_t Prefix(const Digest& fingerprint, std::span<const BlockKey> keys) override;
  bool Knows(const Digest& fingerprint) const override { return namespaces_.contains(fingerprint); }
  size_t sessions() const override { return sessions_.size(); }
  size_t leases() const override { return leases_.size(); }
  uint64_t accepted() const override { return accepted_; }
  uint64_t outdated() const override { return outdated_; }

  // --- PeerEngine

  Result<std::unique_ptr<cache::StoredBlockRead>> ReadStored(const Digest& fingerprint,
                                                             const BlockKey& key) override;
  uint64_t BumpsDigestOf(const Digest& fingerprint) const override;
  uint64_t BumpsDigest() const override;
  cache::BumpPage Bumps(uint64_t begin, size_t most) const override;
  Result<size_t> TakeOverBumps(std::span<const cache::Bump> bumps) override;

  // --- CacheEngine: what the cluster calls

  cache::PeerEngine* for_peers() override { return this; }
  using CacheEngine::OpenSession;
  Result<cache::SessionId> OpenSession(std::string_view client, std::string_view tenant) override;
  void CloseSession(cache::SessionId session) override;
  Result<std::shared_ptr<const NamespaceSpec>> GetNamespace(
      const Digest& fingerprint) const override;
  Result<cache::MatchResult> Match(const cache::MatchRequest& request) override;
  Result<std::unique_ptr<cache::EventQueue>> Watch(const cache::WatchRequest& request) override;
  Result<DropResult> DropNamespace(const Digest& fingerprint) override;
  Result<DropResult> BumpEpoch(const Digest& fingerprint) override;
  void Tick() override;

  // --- CacheEngine: what nobody calls here

  Result<std::shared_ptr<const NamespaceSpec>> GetNamespaceFor(cache::SessionId,
                                                               const Digest&) const override {
    return None();
  }
  Result<std::string> TenantOf(const Digest&) const override { return None(); }
  Result<OpenedNamespace> OpenNamespace(const NamespaceSpec&, bool, Duration,
                                        cache::LifeChange) override {
    return None();
  }
  Result<std::unique_ptr<cache::FetchStream>> Fetch(const cache::FetchRequest&) override {
    return None();
  }
  Status Release(cache::SessionId, std::span<const cache::LeaseId>) override { return None(); }
  Result<Duration> RenewLease(cache::SessionId, cache::LeaseId, Duration) override {
    return None();
  }
  Result<PrefetchOutcome> Prefetch(const cache::PrefetchRequest&) override { return None(); }
  Result<std::vector<std::optional<TierKind>>> Exists(const Digest&,
                                                      std::span<const BlockKey>) override {
    return None();
  }
  Result<std::vector<Result<cache::ReservationId>>> Reserve(
      cache::SessionId, const Digest&, std::span<const cache::ReservePartRequest>,
      Duration) override {
    return None();
  }
  Status Write(cache::SessionId, cache::ReservationId, uint64_t,
               std::span<const std::byte>) override {
    return None();
  }
  Result<std::vector<Status>> Commit(cache::SessionId, std::span<const cache::ReservationId>,
                                     std::string_view) override {
    return None();
  }
  Status Abort(cache::SessionId, std::span<const cache::ReservationId>) override { return None(); }
  Status Flush(const cache::FlushRequest&) override { return OkStatus(); }
  cache::EngineStats GetStats() const override { return {}; }
  std::vector<NamespaceInfo> ListNamespaces(std::string_view) const override { return {}; }
  Result<DropResult> DropTenant(std::string_view) override { return None(); }
  void SetTenantLimits(cache::NodeTenants::LimitsOf) override {}
  std::vector<std::shared_ptr<const cache::NodeTenant>> GetTenants() const override { return {}; }
  void BeginDrain() override {}
  bool WaitUnused(TimePoint /*deadline*/) override { return true; }

 private:
  static Status None() { return Errorf(StatusCode::kUnimplemented, "a light engine"); }
  struct Stored {
    uint64_t stamp = 0;
    std::list<BlockId>::iterator place;
  };
  struct Lease {
    cache::SessionId session = 0;
    TimePoint ends{};
  };
  class Queue;
  class Read;
  class Sink;
  struct Request;

  void Put(const BlockId& id, uint64_t stamp);
  void Remove(const BlockId& id);
  // Front blocks are used last, so that a prompt leaves from its end.
  void Touch(const Digest& fingerprint, std::span<const BlockKey> keys);
  void Hide(const Digest& fingerprint);
  void Tell(CacheEvent event);
  // Reads of this request that may begin now.
  void Pump(const std::shared_ptr<Request>& request);
  void Locate(const std::shared_ptr<Request>& request);
  void ReadOne(const std::shared_ptr<Request>& request, uint32_t number);
  bool Remember(const cache::Bump& bump);
  DropResult BumpHere(const Digest& fingerprint);

  const Options options_;
  const Clock& clock_;
  cache::BlockSource* const source_;
  const TellWrong wrong_;
  uint64_t random_;
  bool closed_ = false;
  std::map<Digest, uint32_t> namespaces_;
  absl::flat_hash_map<BlockId, Stored> blocks_;
  std::list<BlockId> order_;
  std::vector<cache::Bump> bumps_;
  std::map<Digest, std::set<cache::Bump::Id>> known_bumps_;
  std::map<Digest, uint64_t> bump_digests_;
  uint64_t bumps_digest_ = 0;
  std::set<cache::SessionId> sessions_;
  std::vector<Lease> leases_;
  uint64_t next_session_ = 1;
  std::vector<Queue*> queues_;
  // Blocks that are read, and who waits for them.
  std::map<BlockId, std::vector<std::function<void(bool)>>> reading_;
  uint64_t accepted_ = 0, outdated_ = 0;
};

}  // namespace cairn::testing
