#include "services/cache/store/mover/common_guests.h"

#include <algorithm>
#include <tuple>
#include <vector>

#include "services/cache/store/mover/host_scan.h"

namespace cairn::cache {
namespace {

constexpr Duration kPause = std::chrono::seconds(1);  // After a look that found none.
// The next look waits for this many times as long as the last one took.
constexpr int kLookShare = 50;
constexpr size_t kMostGuests = 4096;  // In the list.

}  // namespace

CommonGuests::CommonGuests(NodeContext* context, Evictor* evictor)
    : context_(*context), evictor_(*evictor), pump_(context->executor, [this] {
        Look();
        return false;
      }) {}

uint64_t CommonGuests::OldestUse() {
  Refill();
  MutexLock lock(mu_);
  return oldest_first_.empty() ? UINT64_MAX : oldest_first_.front().last_use;
}

uint64_t CommonGuests::EvictOldest(const Victims& victims) {
  Refill();
  for (;;) {
    Guest guest;
    {
      MutexLock lock(mu_);
      if (oldest_first_.empty() || oldest_first_.front().last_use >= victims.used_before) return 0;
      guest = std::move(oldest_first_.front());
      oldest_first_.pop_front();
    }
    // It is found again at the next look.
    if (!Evictor::MayGo(*guest.ns, TierKind::kHost, victims)) continue;
    const std::optional<uint64_t> bytes = Evict(guest, victims.leased);
    if (bytes == 0) continue;
    if (bytes) return *bytes;
    // For others, who may take it.
    MutexLock lock(mu_);
    oldest_first_.push_front(std::move(guest));
    return 0;
  }
}

void CommonGuests::Refill() {
  {
    MutexLock lock(mu_);
    if (!oldest_first_.empty()) return;
  }
  constexpr uint32_t kNoOwnerYet = 1;
  if (context_.tiers.host->owners_version() == kNoOwnerYet) return;
  if (context_.clock->Now() < next_look_.load()) return;
  if (BlocksInHost(context_) <= kSmallHostScan) {
    Look();
  } else {
    pump_.Kick();
  }
}

void CommonGuests::Look() {
  if (looking_.exchange(true)) return;
  const TimePoint begin = context_.clock->Now();
  std::vector<Guest> found;
  const auto before = [](const Guest& a, const Guest& b) {
    return std::tie(a.last_use, a.more_below) < std::tie(b.last_use, b.more_below);
  };
  // The newest of those that were kept so far is on top, and makes place for an older one.
  ForEachBlockInHost(
      context_, [&](const NamespacePtr& ns, const BlockIndex& index, BlockRef ref, bool pinned) {
        const BlockMeta& meta = index.MetaAt(ref);
        if (pinned || meta.dirty_in(TierKind::kHost) || evictor_.OwnerOf(*ns) == kCommon) return;
        if (index.IsHeldByLease(ref, TierKind::kHost)) return;
        Guest guest{ns, index.KeyAt(ref), meta.last_use, index.HasMoreBelow(ref, TierKind::kHost)};
        const bool full = found.size() == kMostGuests;
        if ((full && !before(guest, found.front())) || !LiesAmongCommon(index, ref)) return;
        if (full) {
          std::pop_heap(found.begin(), found.end(), before);
          found.pop_back();
        }
        found.push_back(std::move(guest));
        std::push_heap(found.begin(), found.end(), before);
      });
  std::sort_heap(found.begin(), found.end(), before);
  const TimePoint end = context_.clock->Now();
  next_look_.store(end + (found.empty() ? kPause : kLookShare * (end - begin)));
  {
    MutexLock lock(mu_);
    oldest_first_.assign(std::make_move_iterator(found.begin()),
                         std::make_move_iterator(found.end()));
  }
  looking_.store(false);
}

bool CommonGuests::LiesAmongCommon(const BlockIndex& index, BlockRef ref) const {
  const auto& parts = index.PartsOf(ref);
  return std::any_of(parts.begin(), parts.end(), [this](const PartPlace& part) {
    return context_.tiers.host->PlaceOf(part.extent[TierKind::kHost]).owner == kCommon;
  });
}

std::optional<uint64_t> CommonGuests::Evict(const Guest& guest, bool leased) {
  NamespaceState& ns = *guest.ns;
  NamespaceLock lock(ns, context_.tiers);
  if (ns.dropped.load(std::memory_order_relaxed)) return 0;
  const auto ref = ns.index.FindAlive(guest.key);
  if (!ref || !ns.index.MetaAt(*ref).in(TierKind::kHost)) return 0;
  const BlockMeta& meta = ns.index.MetaAt(*ref);
  const bool as_found = meta.last_use == guest.last_use && LiesAmongCommon(ns.index, *ref);
  if (!as_found || meta.dirty_in(TierKind::kHost) || ns.index.IsKept(*ref, TierKind::kHost)) {
    return 0;
  }
  if (!leased && ns.index.IsLeased(*ref)) return std::nullopt;
  const BlockIndex::Evicted evicted =
      ns.index.EvictBlock(*ref, TierKind::kHost, &lock.released, context_.UseTicksNow());
  evictor_.CountEvicted(ns, evicted, TierKind::kHost);
  return evicted.bytes;
}

}  // namespace cairn::cache
