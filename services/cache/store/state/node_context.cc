#include "services/cache/store/state/node_context.h"

#include <algorithm>
#include <ctime>
#include <random>

#include "services/cache/store/block/record.h"

namespace cairn::cache {
namespace {

uint64_t RandomSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

NodeContext::NodeContext(const EngineOptions& options_in, const Tiers& tiers_in,
                         const Clock* clock_in, Executor* executor_in, uint64_t node_epoch,
                         MemoryAccount* memory_in)
    : options(options_in),
      tiers(tiers_in),
      clock(clock_in),
      executor(executor_in),
      own_memory(memory_in != nullptr
                     ? nullptr
                     : std::make_unique<MemoryAccount>(MemoryAccount::Unbounded())),
      memory(memory_in != nullptr ? *memory_in : *own_memory),
      start(clock_in->Now()),
      seed(RandomSeed()),
      registry(options_in.max_namespaces),
      bumps(&memory),
      events(options_in.watch_queue_capacity, node_epoch, *clock_in, &memory),
      pace{{ReadPace(clock_in), ReadPace(clock_in), ReadPace(clock_in)}},
      arrivals(executor_in) {}

uint64_t NodeContext::IndexBytes() const { return gone.MemoryBytes() + registry.IndexBytes(); }

void NodeContext::Publish(CacheEvent::Kind kind, const NamespaceState& ns, const BlockKey& key,
                          TierKind tier, const std::optional<BlockKey>& parent, uint32_t pool) {
  if (!events.HasWatchers()) return;
  CacheEvent event;
  event.kind = kind;
  event.fingerprint = ns.fingerprint;
  event.key = key;
  event.parent = parent;
  event.tier = tier;
  event.pool = pool;
  events.Publish(event, ns.spec.tenant);
}

void NodeContext::PublishLeft(const NamespaceState& ns, const BlockKey& key, TierKind tier,
                              bool left_all, uint32_t pool) {
  // Blocks that were dropped with their namespace were announced with it.
  if (ns.dropped.load(std::memory_order_relaxed)) return;
  Publish(left_all ? CacheEvent::Kind::kRemoved : CacheEvent::Kind::kTierRemoved, ns, key, tier,
          std::nullopt, pool);
}

Status NodeContext::CheckOwner(const NamespaceState& ns, const BlockKey& key, const PartPlace& part,
                               TierKind tier) const {
  if (tiers.persistent == nullptr || tiers.persistent->kind() != tier) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const std::string bytes, tiers.persistent->RecordOf(part.In(tier)));
  CAIRN_ASSIGN_OR_RETURN(const BlockRecord record, DecodeRecord(bytes));
  if (record.fingerprint == ns.fingerprint && record.key == key && record.rect == part.rect) {
    return OkStatus();
  }
  return Errorf(StatusCode::kDataLoss, "{} tier, extent {}: got block {}, expected {}", Name(tier),
                part.extent[tier], record.key.Hex(), key.Hex());
}

Status NodeContext::CheckPace(const NamespaceState& ns) {
  const NodeTenant* const tenant = ns.tenant().get();
  if (tenant == nullptr || tenant->pace.rate() == TenantPace::kNoLimit) return OkStatus();
  const Duration debt = tenant->pace.Debt(clock->Now());
  if (debt <= Duration(0)) return OkStatus();
  counters.over_pace.Add();
  return Errorf(StatusCode::kResourceExhausted,
                "tenant '{}' has read and written what its limit of {} bytes a second gives it "
                "(the policy's limits), try again in {:.3f} s",
                tenant->name(), tenant->pace.rate(), Seconds(debt));
}

int64_t NodeContext::UnixSecondsNow() const {
  return options.unix_seconds != nullptr ? options.unix_seconds()
                                         : static_cast<int64_t>(std::time(nullptr));
}

int64_t NodeContext::UnixSecondsOf(uint32_t last_use) const {
  const Duration ago = TimeSinceUse(last_use, UseTicksNow());
  return UnixSecondsNow() - std::chrono::duration_cast<std::chrono::seconds>(ago).count();
}

uint32_t NodeContext::UseTicksOf(int64_t unix_seconds) const {
  const int64_t most = std::chrono::duration_cast<std::chrono::seconds>(kTicksBefore).count();
  const int64_t ago = std::clamp<int64_t>(UnixSecondsNow() - unix_seconds, 0, most);
  return UseTicksAt(clock->Now() - std::chrono::seconds(ago));
}

bool NodeContext::DropIfOver(NamespaceState& ns, const BlockKey& key, ReleaseList* released) {
  auto ref = ns.index.FindAlive(key);
  if (!ref || !ns.index.IsOver(*ref, UseTicksNow())) return false;
  if (ns.index.IsLeased(*ref) || ns.index.IsPinned(*ref)) return false;
  for (const TierKind tier : kTiersByRank) {
    // Places change with each tier that it leaves.
    ref = ns.index.FindAlive(key);
    if (!ref || !ns.index.MetaAt(*ref).in(tier)) continue;
    const uint32_t pool = ns.index.PoolAt(*ref);
    PublishLeft(ns, key, tier, ns.index.RemoveFromTier(*ref, tier, released), pool);
  }
  counters.expired_blocks.Add();
  return true;
}

bool NodeContext::RemoveCorrupt(NamespaceState& ns, const BlockKey& key, TierKind tier,
                                uint64_t extent) {
  NamespaceLock lock(ns, tiers);
  const auto ref = ns.index.FindAlive(key);
  if (!ref) return false;
  if (!ns.index.MetaAt(*ref).in(tier)) return true;
  bool same = false;
  for (const PartPlace& part : ns.index.PartsOf(*ref)) {
    same |= part.extent[tier] == extent;
  }
  if (!same) return true;
  counters.corrupt_blocks.Add();
  const uint32_t pool = ns.index.PoolAt(*ref);
  const bool left_all = ns.index.RemoveFromTier(*ref, tier, &lock.released);
  if (left_all) gone.Remember(ns.fingerprint, key, RecentlyGone::Why::kCorrupt);
  PublishLeft(ns, key, tier, left_all, pool);
  return !left_all;
}

}  // namespace cairn::cache
