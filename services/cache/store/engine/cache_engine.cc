#include "services/cache/store/engine/cache_engine.h"

#include <sys/random.h>

#include "common/log/log.h"
#include "services/cache/store/block/record.h"
#include "services/cache/store/engine/block_intake.h"
#include "services/cache/store/engine/bump_records.h"
#include "services/cache/store/engine/for_peers.h"
#include "services/cache/store/engine/in_place_path.h"
#include "services/cache/store/engine/lost_extents.h"
#include "services/cache/store/engine/namespace_admin.h"
#include "services/cache/store/engine/prefetch_path.h"
#include "services/cache/store/engine/read_path.h"
#include "services/cache/store/engine/reclaimer.h"
#include "services/cache/store/engine/recovery.h"
#include "services/cache/store/engine/snapshot.h"
#include "services/cache/store/engine/source_reads.h"
#include "services/cache/store/engine/stored_reads.h"
#include "services/cache/store/engine/write_path.h"
#include "services/cache/store/lease/session_table.h"
#include "services/cache/store/mover/demoter.h"
#include "services/cache/store/mover/promoters.h"
#include "services/cache/store/mover/transfer_budget.h"
#include "services/cache/store/mover/write_back.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

namespace {

constexpr size_t kMaxClientName = 128;

// For a node without such a tier: any kind that it does not have.
TierKind PersistentKind(const Tiers& tiers) {
  return tiers.persistent != nullptr ? tiers.persistent->kind() : TierKind::kDisk;
}

Bump::Id RandomBumpId() {
  Bump::Id id;
  CAIRN_CHECK(getrandom(id.data(), id.size(), 0) == static_cast<ssize_t>(id.size()));
  return id;
}

// Wires the parts together; each call goes to the one that does it.
class Engine final : public CacheEngine, public InPlaceEngine, public PeerEngine {
 public:
  Engine(const EngineOptions& options, const Dependencies& dependencies)
      : node_id_(dependencies.node_id),
        disk_io_mode_(dependencies.disk_io_mode),
        node_epoch_(dependencies.node_epoch),
        context_(options, dependencies.tiers, dependencies.clock, dependencies.executor,
                 dependencies.node_epoch, dependencies.memory),
        sessions_(options.max_sessions, options.max_leases_per_session),
        evictor_(&context_),
        promoters_(&context_, &evictor_),
        write_back_(&context_, &evictor_, {TierKind::kHost, PersistentKind(dependencies.tiers)}),
        intake_(&context_, &evictor_, &write_back_),
        budget_(options.max_transfer_bytes, &context_.progress),
        source_reads_(&context_, &intake_, &budget_, dependencies.source, dependencies.timers),
        reads_(&context_, &sessions_, &promoters_, &budget_, &source_reads_, dependencies.source,
               dependencies.timers),
        in_place_(&context_, &sessions_, &promoters_, &reads_),
        prefetches_(&context_, &sessions_, &promoters_),
        writes_(&context_, &sessions_, &evictor_, &intake_),
        reclaimer_(&context_, &writes_),
        lost_extents_(&context_),
        stored_reads_({&context_, &promoters_, &budget_, &source_reads_}),
        bump_records_(dependencies.tiers.persistent),
        admin_({&context_, &sessions_, &reads_, &writes_, &write_back_, &reclaimer_, &bump_records_,
                dependencies.new_bump_id ? dependencies.new_bump_id : RandomBumpId}) {}

  ~Engine() override {
    if (context_.tiers.persistent != nullptr) context_.tiers.persistent->SetDamageListener(nullptr);
    source_reads_.Close();
    context_.arrivals.Close();
    // Callbacks of I/O under way, and of a source, point here.
    context_.in_flight.WaitForNone(*context_.clock);
    // Reservations give their room back to parts that must still be there.
    const SessionTable::Ended ended = sessions_.Expire(TimePoint::max());
    reads_.End(ended.leases, MissReason::kRefused);
    writes_.Drop(ended.reservations);
  }

  Status Recover() {
    if (context_.tiers.persistent == nullptr) return OkStatus();
    context_.tiers.persistent->SetDamageListener(
        [this](const Extent& extent, std::string_view bytes) {
          const auto record = DecodeRecord(bytes);
          if (!record.ok()) return;
          const NamespacePtr ns = context_.registry.Find(record->fingerprint);
          if (ns == nullptr) return;
          context_.RemoveCorrupt(*ns, record->key, context_.tiers.persistent->kind(), extent.id);
        });
    CAIRN_RETURN_IF_ERROR(bump_records_.Load(&context_.bumps));
    CAIRN_ASSIGN_OR_RETURN(const RecoveryResult found, RecoverFromDisk(context_));
    log::Info("recovered", {{"namespaces", log::Num(found.namespaces)},
                            {"unreadable_namespaces", log::Num(found.unreadable_namespaces)},
                            {"blocks", log::Num(found.blocks)},
                            {"released", log::Num(found.released)}});
    return OkStatus();
  }

  Result<SessionId> OpenSession(std::string_view client_name, std::string_view tenant) override {
    if (client_name.size() > kMaxClientName) {
      return InvalidArgument("field 'client_name': got {} characters, expected 0 to {}",
                             client_name.size(), kMaxClientName);
    }
    return sessions_.Open(client_name, tenant,
                          tenant.empty() || tenant == kNoTenant
                              ? nullptr
                              : context_.registry.tenants().Get(std::string(tenant)));
  }
  void CloseSession(SessionId session) override {
    const SessionTable::Ended ended = sessions_.Close(session);
    reads_.End(ended.leases, MissReason::kRefused);
    writes_.Drop(ended.reservations);
    prefetches_.EndSession(session);
  }

  Result<OpenedNamespace> OpenNamespace(const NamespaceSpec& spec, bool strict, Duration block_life,
                                        LifeChange change) override {
    return admin_.Open(spec, strict, block_life, change);
  }
  Result<std::shared_ptr<const NamespaceSpec>> GetNamespace(
      const Fingerprint& fingerprint) const override {
    CAIRN_ASSIGN_OR_RETURN(const NamespacePtr ns, context_.registry.Get(fingerprint));
    return std::shared_ptr<const NamespaceSpec>(ns->stored, &ns->stored->spec);
  }
  Result<std::string> TenantOf(const Fingerprint& fingerprint) const override {
    CAIRN_ASSIGN_OR_RETURN(const NamespacePtr ns, context_.registry.GetToDrop(fingerprint));
    return ns->spec.tenant;
  }

  Result<std::shared_ptr<const NamespaceSpec>> GetNamespaceFor(
      SessionId session, const Fingerprint& fingerprint) const override {
    CAIRN_ASSIGN_OR_RETURN(const std::string tenant, sessions_.TenantOf(session));
    CAIRN_ASSIGN_OR_RETURN(const NamespacePtr ns, context_.registry.Get(fingerprint, tenant));
    return std::shared_ptr<const NamespaceSpec>(ns->stored, &ns->stored->spec);
  }

  Result<MatchResult> Match(const MatchRequest& request) override { return reads_.Match(request); }
  Result<std::unique_ptr<FetchStream>> Fetch(const FetchRequest& request) override {
    return reads_.Fetch(request);
  }
  Status Release(SessionId session, std::span<const LeaseId> leases) override {
    return reads_.Release(session, leases);
  }
  Result<Duration> RenewLease(SessionId session, LeaseId lease, Duration ttl) override {
    return reads_.RenewLease(session, lease, ttl);
  }
  Result<PrefetchOutcome> Prefetch(const PrefetchRequest& request) override {
    return prefetches_.Prefetch(request);
  }
  Result<std::vector<std::optional<TierKind>>> Exists(const Fingerprint& fingerprint,
                                                      std::span<const BlockKey> keys) override {
    return reads_.Exists(fingerprint, keys);
  }

  Result<std::vector<Result<ReservationId>>> Reserve(SessionId session,
                                                     const Fingerprint& fingerprint,
                                                     std::span<const ReservePartRequest> parts,
                                                     Duration ttl) override {
    if (draining_.load()) return Errorf(StatusCode::kUnavailable, "the node is shutting down");
    return writes_.Reserve(session, fingerprint, parts, ttl);
  }
  Status Write(SessionId session, ReservationId reservation, uint64_t offset,
               std::span<const std::byte> data) override {
    return writes_.Write(session, reservation, offset, data);
  }
  Result<std::vector<Status>> Commit(SessionId session, std::span<const ReservationId> reservations,
                                     std::string_view trace) override {
    return writes_.Commit(session, reservations, trace);
  }
  Status Abort(SessionId session, std::span<const ReservationId> reservations) override {
    return writes_.Abort(session, reservations);
  }
  using CacheEngine::Flush;
  Status Flush(const FlushRequest& request) override { return write_back_.Flush(request); }

  EngineStats GetStats() const override;
  Result<std::unique_ptr<EventQueue>> Watch(const WatchRequest& request) override;

  std::vector<NamespaceInfo> ListNamespaces(std::string_view tenant) const override {
    return admin_.List(tenant);
  }
  Result<DropResult> DropNamespace(const Fingerprint& fingerprint) override {
    return admin_.Drop(fingerprint);
  }
  Result<DropResult> DropTenant(std::string_view tenant) override {
    return admin_.DropTenant(tenant);
  }
  Result<DropResult> BumpEpoch(const Fingerprint& fingerprint) override {
    return admin_.BumpEpoch(fingerprint);
  }
  void SetTenantLimits(NodeTenants::LimitsOf limits_of) override {
    context_.registry.tenants().SetLimits(std::move(limits_of));
  }
  std::vector<std::shared_ptr<const NodeTenant>> GetTenants() const override {
    const auto all = context_.registry.tenants().All();
    return {all.begin(), all.end()};
  }

  void Tick() override {
    const SessionTable::Ended ended = sessions_.Expire(context_.clock->Now());
    context_.counters.expired_leases.Add(ended.leases.size());
    context_.counters.expired_reservations.Add(ended.reservations.size());
    reads_.End(ended.leases, MissReason::kDeadline);
    writes_.Drop(ended.reservations);
    const auto all = context_.registry.All();
    for (const NamespacePtr& ns : *all) {
      if (ns->incomplete_blocks.load(std::memory_order_relaxed) > 0) {
        writes_.ExpireIncomplete(*ns, /*all=*/false);
      }
    }
    prefetches_.Tick();
    write_back_.Tick();
    evictor_.demoter()->Tick(&promoters_);
    promoters_.Kick();
    source_reads_.Kick();
    context_.arrivals.Tick();
    reclaimer_.Kick();
    lost_extents_.Tick();
    context_.tiers.host->SweepRetired();
    context_.memory.Measure(MemoryItem::kTransfers, budget_.used());
  }
  void BeginDrain() override {
    draining_.store(true);
    context_.arrivals.Close();
  }
  bool WaitUnused(TimePoint deadline) override {
    while (true) {
      const uint64_t seen = context_.progress.Now();
      if (sessions_.leases() == 0 && sessions_.reservations() == 0) return true;
      if (!context_.progress.WaitPast(seen, *context_.clock, deadline)) return false;
    }
  }

  InPlaceEngine* in_place() override { return this; }
  using InPlaceEngine::MatchInPlace;
  Result<MatchResult> MatchInPlace(const MatchRequest& request, size_t max_places,
                                   std::vector<PlacedPart>* places,
                                   const DeviceReach* reach) override {
    return in_place_.Match(request, max_places, places, reach);
  }
  Status Locate(const LocateRequest& request, std::vector<PlacedPart>* places) override {
    return in_place_.Locate(request, places);
  }
  using InPlaceEngine::Report;
  Status Report(SessionId session, LeaseId lease, uint32_t block, bool reads_devices) override {
    return in_place_.Report(session, lease, block, reads_devices);
  }
  Status ExistsInPlace(const Fingerprint& fingerprint, std::span<const BlockKey> keys,
                       std::span<std::optional<TierKind>> found) override {
    return in_place_.Exists(fingerprint, keys, found);
  }
  Result<std::vector<Result<PlacedReservation>>> ReserveInPlace(
      SessionId session, const Fingerprint& fingerprint,
      std::span<const ReservePartRequest> parts) override {
    if (draining_.load()) return Errorf(StatusCode::kUnavailable, "the node is shutting down");
    return writes_.ReserveInPlace(session, fingerprint, parts);
  }
  void CountInPlace(SessionId session, const ByTier<uint64_t>& read, uint64_t written) override {
    uint64_t bytes = 0;
    for (const TierKind tier : kTiersByRank) {
      bytes += read[tier];
      context_.counters.fetched_from[tier].Add(read[tier]);
    }
    context_.counters.fetched_bytes.Add(bytes);
    context_.counters.pushed_bytes.Add(written);  // They were spent when they were reserved.
    if (bytes > 0) sessions_.Spend(session, bytes, context_.clock->Now());
  }

  PeerEngine* for_peers() override { return this; }
  Result<std::unique_ptr<StoredBlockRead>> ReadStored(const Fingerprint& fingerprint,
                                                      const BlockKey& key) override {
    return stored_reads_.Begin(fingerprint, key);
  }
  uint64_t BumpsDigestOf(const Fingerprint& fingerprint) const override {
    return context_.bumps.DigestOf(fingerprint);
  }
  uint64_t BumpsDigest() const override { return context_.bumps.digest(); }
  BumpPage Bumps(uint64_t begin, size_t most) const override {
    return context_.bumps.Page(begin, most);
  }
  Result<size_t> TakeOverBumps(std::span<const Bump> bumps) override {
    return admin_.TakeOver(bumps);
  }

 private:
  const std::string node_id_;
  const std::string disk_io_mode_;
  const uint64_t node_epoch_;
  NodeContext context_;
  SessionTable sessions_;
  Evictor evictor_;
  Promoters promoters_;
  WriteBack write_back_;
  BlockIntake intake_;
  TransferBudget budget_;
  SourceReads source_reads_;
  ReadPath reads_;
  InPlacePath in_place_;
  PrefetchPath prefetches_;
  WritePath writes_;
  Reclaimer reclaimer_;
  LostExtents lost_extents_;
  StoredReads stored_reads_;
  BumpRecords bump_records_;
  NamespaceAdmin admin_;
  std::atomic<bool> draining_{false};
};

EngineStats Engine::GetStats() const {
  EngineStats stats;
  stats.node_id = node_id_;
  stats.node_epoch = node_epoch_;
  stats.disk_io_mode = disk_io_mode_;
  stats.uptime_seconds = Seconds(context_.clock->Now() - context_.start);
  for (const TierKind kind : context_.tiers.kinds()) {
    const TierStats tier = context_.tiers.Get(kind)->GetStats();
    TierState& state = stats.tiers[kind].emplace();
    state.tier = kind;
    state.capacity_bytes = tier.capacity_bytes;
    state.used_bytes = tier.used_bytes;
    state.extents = tier.extents;
    state.read_bytes = tier.read_bytes;
    state.written_bytes = tier.written_bytes;
    state.io_errors = tier.io_errors;
    state.read_bytes_per_second = context_.pace[kind].BytesPerSecond();
  }
  context_.counters.CopyTo(&stats);
  const auto all = context_.registry.All();
  for (const NamespacePtr& ns : *all) {
    stats.blocks += ns->blocks.load(std::memory_order_relaxed);
    stats.incomplete_blocks += ns->incomplete_blocks.load(std::memory_order_relaxed);
    for (const TierKind kind : context_.tiers.kinds()) {
      stats.tiers[kind]->blocks += ns->blocks_in[kind].load(std::memory_order_relaxed);
    }
  }
  stats.namespaces = all->size();
  stats.leases = sessions_.leases();
  stats.reservations = sessions_.reservations();
  stats.reserved_bytes = writes_.reserved_bytes();
  stats.sessions = sessions_.sessions();
  stats.unflushed_bytes = write_back_.unflushed_bytes();
  stats.index_bytes = context_.IndexBytes() + context_.MapBytes() + reclaimer_.MemoryBytes();
  stats.mover_queue_depth = promoters_.depth() + write_back_.depth();
  for (const MoveQueue::Stats& moves : {promoters_.GetStats(), write_back_.queue().GetStats()}) {
    stats.merged_moves += moves.merged;
    stats.cancelled_moves += moves.cancelled;
  }
  stats.waiting_matches = context_.arrivals.waiting();
  stats.hinted_bytes = prefetches_.hinted_bytes();
  stats.retired_bytes = context_.tiers.host->GetHostStats().retired_bytes;
  stats.dropped_events = context_.events.dropped();
  return stats;
}

Result<std::unique_ptr<EventQueue>> Engine::Watch(const WatchRequest& request) {
  EventFilter filter{.fingerprint = request.fingerprint, .tenant = request.tenant};
  if (request.session) {
    CAIRN_ASSIGN_OR_RETURN(filter.tenant, sessions_.TenantOf(*request.session));
  }
  // An unknown namespace would be a watch that never says anything.
  if (request.fingerprint) {
    CAIRN_RETURN_IF_ERROR(context_.registry.Get(*request.fingerprint, filter.tenant).status());
  }
  if (!request.snapshot) return context_.events.Subscribe(filter);
  // The namespaces are listed when the first page is made: one that is opened in between is told
  // twice, never left out.
  return context_.events.Subscribe(filter, [this, filter, pages = std::shared_ptr<Snapshot>()](
                                               std::vector<CacheEvent>* events) mutable {
    if (pages == nullptr) {
      pages = std::make_shared<Snapshot>(&context_.tiers, context_.registry, filter);
    }
    return pages->NextPage(events);
  });
}

Status CheckOptions(const EngineOptions& o) {
  const auto positive = [](std::string_view field, uint64_t value) {
    return value > 0 ? OkStatus()
                     : InvalidArgument("option '{}': got 0, expected at least 1", field);
  };
  CAIRN_RETURN_IF_ERROR(positive("max_sessions", o.max_sessions));
  CAIRN_RETURN_IF_ERROR(positive("max_leases_per_session", o.max_leases_per_session));
  CAIRN_RETURN_IF_ERROR(positive("max_namespaces", o.max_namespaces));
  CAIRN_RETURN_IF_ERROR(positive("max_index_bytes", o.max_index_bytes));
  CAIRN_RETURN_IF_ERROR(positive("max_transfer_bytes", o.max_transfer_bytes));
  CAIRN_RETURN_IF_ERROR(positive("mover_queue_capacity", o.mover_queue_capacity));
  CAIRN_RETURN_IF_ERROR(positive("watch_queue_capacity", o.watch_queue_capacity));
  for (const auto& [field, timeout] : {std::pair("source_lookup_timeout", o.source_lookup_timeout),
                                       std::pair("source_read_timeout", o.source_read_timeout)}) {
    if (timeout.count() > 0) continue;
    return InvalidArgument("option '{}': got {} s, expected more than 0", field, Seconds(timeout));
  }
  if (o.prefetch_grace.count() < 0) {
    return InvalidArgument("option 'prefetch_grace': got {} s, expected at least 0",
                           Seconds(o.prefetch_grace));
  }
  if (o.default_lease_ttl.count() <= 0 || o.default_lease_ttl > o.max_lease_ttl) {
    return InvalidArgument(
        "option 'default_lease_ttl': got {} s, expected more than 0 and at most {} s",
        Seconds(o.default_lease_ttl), Seconds(o.max_lease_ttl));
  }
  if (o.default_reservation_ttl.count() <= 0 || o.default_reservation_ttl > o.max_reservation_ttl) {
    return InvalidArgument(
        "option 'default_reservation_ttl': got {} s, expected more than 0 and at most {} s",
        Seconds(o.default_reservation_ttl), Seconds(o.max_reservation_ttl));
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<CacheEngine>> CacheEngine::Create(const EngineOptions& options,
                                                         const Dependencies& dependencies) {
  CAIRN_RETURN_IF_ERROR(CheckOptions(options));
  CAIRN_CHECK(dependencies.tiers.host != nullptr && dependencies.clock != nullptr &&
              dependencies.executor != nullptr);
  CAIRN_CHECK(dependencies.source == nullptr || dependencies.timers != nullptr);
  auto engine = std::make_unique<Engine>(options, dependencies);
  CAIRN_RETURN_IF_ERROR(engine->Recover());
  return engine;
}

}  // namespace cairn::cache
