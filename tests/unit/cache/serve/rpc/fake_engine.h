#pragma once
// An engine that remembers what it was asked and answers as told, for tests of the network edge.

#include <map>
#include <set>

#include "common/concurrency/mutex.h"
#include "services/cache/store/engine/cache_engine.h"

namespace cairn::cache {

class FakeEngine final : public CacheEngine {
 public:
  Result<SessionId> OpenSession(std::string_view, std::string_view named) override {
    MutexLock lock(mu);
    tenant = named;
    open.insert(++last_session);
    changed.NotifyAll();
    return last_session;
  }
  void CloseSession(SessionId session) override {
    MutexLock lock(mu);
    open.erase(session);
    changed.NotifyAll();
  }
  Result<OpenedNamespace> OpenNamespace(const NamespaceSpec& s, bool, Duration,
                                        LifeChange change) override {
    CAIRN_RETURN_IF_ERROR(Validate(s));
    MutexLock lock(mu);
    last_life_change = change;
    spec = s;
    return OpenedNamespace{.fingerprint = Fingerprint(s), .created = true, .differs = {}};
  }
  static Digest Fingerprint(const NamespaceSpec& s) { return cairn::Fingerprint(s); }
  Result<std::shared_ptr<const NamespaceSpec>> GetNamespace(
      const Digest& fingerprint) const override {
    MutexLock lock(mu);
    if (!spec || cairn::Fingerprint(*spec) != fingerprint)
      return Errorf(StatusCode::kNotFound, "fingerprint: unknown");
    return std::make_shared<const NamespaceSpec>(*spec);
  }
  Result<std::shared_ptr<const NamespaceSpec>> GetNamespaceFor(
      SessionId /*session*/, const Digest& fingerprint) const override {
    return GetNamespace(fingerprint);
  }
  Result<std::string> TenantOf(const Digest& fingerprint) const override {
    CAIRN_ASSIGN_OR_RETURN(const auto found, GetNamespace(fingerprint));
    return found->tenant;
  }
  Result<MatchResult> Match(const MatchRequest& request) override {
    MutexLock lock(mu);
    trace = request.trace;
    match_leased = request.lease;
    holders.assign(request.holders.begin(), request.holders.end());
    next = request.next;
    MatchResult result;
    result.matched_blocks = static_cast<uint32_t>(request.keys.size()) - 1;
    result.lease = 7;
    result.lease_ttl = request.lease_ttl;
    result.tiers = {{TierKind::kHost, 1, 100, 0.25},
                    {TierKind::kDisk, result.matched_blocks - 1, 200, 0.5}};
    result.miss_reason = MissReason::kEvicted;
    if (asks_source) result.further = std::make_shared<Further>(this);
    return result;
  }
  // A match that waits until the test answers it.
  class Further final : public FurtherMatch {
   public:
    explicit Further(FakeEngine* engine) : engine_(engine) {}
    void Find(TimePoint, Done done) override {
      MutexLock lock(engine_->mu);
      engine_->waiting.push_back(std::move(done));
      engine_->changed.NotifyAll();
    }

   private:
    FakeEngine* const engine_;
  };
  // Serves `items`, then `end`.
  Result<std::unique_ptr<FetchStream>> Fetch(const FetchRequest& request) override {
    fetched_rows.clear();
    for (const RowGroup& group : request.rows) {
      fetched_rows.push_back({group.block, group.head, {group.mask.begin(), group.mask.end()}});
    }
    if (request.lease != 7) return Errorf(StatusCode::kNotFound, "lease_id: unknown");
    class Stream final : public FetchStream {
     public:
      explicit Stream(FakeEngine* engine) : engine_(engine) {}
      ~Stream() override {
        MutexLock lock(engine_->mu);
        ++engine_->ended_fetches;
        engine_->changed.NotifyAll();
      }
      bool lease_ended() const override {
        MutexLock lock(engine_->mu);
        return engine_->lease_over;
      }
      bool holds_up_others() const override {
        MutexLock lock(engine_->mu);
        return engine_->others_wait;
      }
      Result<std::optional<Item>> Next(TimePoint) override {
        MutexLock lock(engine_->mu);
        ++engine_->fetched;
        if (at_ < engine_->items.size()) return std::optional<Item>(engine_->items[at_++]);
        if (engine_->endless) return std::optional<Item>(engine_->items[0]);
        if (!engine_->end.ok()) return engine_->end;
        return std::optional<Item>();
      }

     private:
      FakeEngine* const engine_;
      size_t at_ = 0;
    };
    return std::unique_ptr<FetchStream>(new Stream(this));
  }
  Status Release(SessionId, std::span<const LeaseId> leases) override {
    MutexLock lock(mu);
    released.insert(released.end(), leases.begin(), leases.end());
    changed.NotifyAll();
    return OkStatus();
  }
  Result<Duration> RenewLease(SessionId, LeaseId, Duration ttl) override { return ttl; }
  Result<PrefetchOutcome> Prefetch(const PrefetchRequest& request) override {
    MutexLock lock(mu);
    prefetch_needed_in = request.needed_in;
    return PrefetchOutcome{.present_blocks = 1,
                           .queued_blocks = static_cast<uint32_t>(request.keys.size()) - 1,
                           .estimated_seconds = 0.5};
  }
  Result<std::vector<std::optional<TierKind>>> Exists(const Digest&,
                                                      std::span<const BlockKey> keys) override {
    std::vector<std::optional<TierKind>> tiers(keys.size());
    tiers[0] = TierKind::kDisk;
    return tiers;
  }
  Result<std::vector<Result<ReservationId>>> Reserve(SessionId, const Digest&,
                                                     std::span<const ReservePartRequest> parts,
                                                     Duration) override {
    std::vector<Result<ReservationId>> results;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i == 1) {
        results.push_back(Errorf(StatusCode::kAlreadyExists, "there"));
      } else {
        results.push_back(ReservationId{i + 1});
      }
    }
    return results;
  }
  Status Write(SessionId, ReservationId reservation, uint64_t offset,
               std::span<const std::byte> data) override {
    MutexLock lock(mu);
    std::string& bytes = written[reservation];
    if (bytes.size() < offset + data.size()) bytes.resize(offset + data.size());
    std::memcpy(bytes.data() + offset, data.data(), data.size());
    return OkStatus();
  }
  // Reservation 13 has lost its bytes.
  Result<std::vector<Status>> Commit(SessionId, std::span<const ReservationId> ids,
                                     std::string_view) override {
    std::vector<Status> results;
    for (const ReservationId id : ids) {
      results.push_back(id == 13 ? Errorf(StatusCode::kDataLoss, "hash") : OkStatus());
    }
    MutexLock lock(mu);
    committed.insert(committed.end(), ids.begin(), ids.end());
    return results;
  }
  Status Abort(SessionId, std::span<const ReservationId>) override { return OkStatus(); }
  Status Flush(const FlushRequest&) override { return OkStatus(); }
  EngineStats GetStats() const override {
    MutexLock lock(mu);
    return stats;
  }
  Result<std::unique_ptr<EventQueue>> Watch(const WatchRequest& request) override {
    if (request.fingerprint) CAIRN_RETURN_IF_ERROR(GetNamespace(*request.fingerprint).status());
    MutexLock watch_lock(mu);
    watched_by.push_back(request.session);
    class Queue final : public EventQueue {
     public:
      explicit Queue(FakeEngine* engine) : engine_(engine) {}
      Result<std::vector<CacheEvent>> Next(size_t max, TimePoint) override {
        MutexLock lock(engine_->mu);
        if (!engine_->watch_end.ok()) return engine_->watch_end;
        EngineStats stats;
        std::vector<CacheEvent> events;
        while (events.size() < max && at_ < engine_->events.size())
          events.push_back(engine_->events[at_++]);
        return events;
      }
      void Cancel() override {}

     private:
      FakeEngine* const engine_;
      size_t at_ = 0;
    };
    return std::make_unique<Queue>(this);
  }
  std::vector<NamespaceInfo> ListNamespaces(std::string_view) const override { return namespaces; }
  Result<DropResult> DropNamespace(const Digest&) override { return DropResult{1, 2}; }
  Result<DropResult> DropTenant(std::string_view) override { return DropResult{3, 4}; }
  Result<DropResult> BumpEpoch(const Digest&) override { return DropResult{1, 5}; }
  void Tick() override {}
  void BeginDrain() override {}
  bool WaitUnused(TimePoint /*deadline*/) override { return true; }
  PeerEngine* for_peers() override { return peers; }

  // Waits, with a deadline, for something that another thread brings about.
  template <typename Predicate>
  bool Wait(Predicate predicate) {
    MutexLock lock(mu);
    return changed.WaitUntil(mu, std::chrono::steady_clock::now() + std::chrono::seconds(60),
                             predicate);
  }
  void SetTenantLimits(NodeTenants::LimitsOf) override {}
  std::vector<std::shared_ptr<const NodeTenant>> GetTenants() const override { return {}; }

  mutable Mutex mu;
  CondVar changed;
  // All guarded by mu; settings are made before the calls.
  SessionId last_session = 0;
  std::string tenant;  // That the last session named.
  std::set<SessionId> open;
  std::optional<NamespaceSpec> spec;
  std::optional<LifeChange> last_life_change;
  std::string trace;
  bool match_leased = false;         // The field of the last match.
  std::vector<std::string> holders;  // The holders of the last match.
  NextUse next = NextUse::kUnknown;  // The field of the last match.
  bool asks_source = false;          // Matches go on at a source.
  std::vector<FurtherMatch::Done> waiting;
  Duration prefetch_needed_in{0};
  std::vector<FetchStream::Item> items;
  bool endless = false;
  bool lease_over = false;   // The leases of fetches under way.
  bool others_wait = false;  // For what fetches under way hold.
  Status end;
  size_t fetched = 0, ended_fetches = 0;
  std::vector<LeaseId> released;
  std::map<ReservationId, std::string> written;
  std::vector<ReservationId> committed;
  EngineStats stats;
  struct AskedRows {
    uint32_t block = 0, head = 0;
    std::vector<uint64_t> mask;
    bool operator==(const AskedRows&) const = default;
  };
  std::vector<AskedRows> fetched_rows;  // The rows of the last fetch.
  std::vector<CacheEvent> events;
  Status watch_end;
  PeerEngine* peers = nullptr;
  std::vector<NamespaceInfo> namespaces;
  std::vector<std::optional<SessionId>> watched_by;
};

// A slice of block `block` that keeps its own bytes.
inline FetchedSlice MakeSlice(uint32_t block, size_t bytes) {
  auto hold = std::make_shared<std::string>(bytes, static_cast<char>('a' + block % 26));
  FetchedSlice slice;
  slice.block = block;
  slice.part = {.layer_begin = 0, .layer_end = 1, .head_begin = 0, .head_end = 1};
  slice.slice_bytes = bytes;
  slice.xxh3 = block;
  slice.data = std::as_bytes(std::span(*hold));
  slice.hold = hold;
  return slice;
}

}  // namespace cairn::cache
