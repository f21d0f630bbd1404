#include "services/cache/store/mover/drainer.h"

#include <algorithm>
#include <tuple>

#include "common/log/log.h"
#include "common/memory/bulk_copy.h"
#include "services/cache/store/block/part_grid.h"
#include "services/cache/store/mover/host_scan.h"

namespace cairn::cache {
namespace {

constexpr TierKind kHost = TierKind::kHost;
constexpr Duration kPauseAfterFailure = std::chrono::seconds(1);  // After a try that failed.
// To copy a block keeps its namespace locked: some milliseconds.
constexpr uint64_t kMaxMovedBytes = 16 << 20;
// Bytes evicted for one byte that moves, at most: holes may be in pieces.
constexpr uint64_t kEvictedPerMoved = 2;

}  // namespace

Drainer::Drainer(NodeContext* context, Evictor* evictor)
    : context_(*context), evictor_(*evictor), pump_(context->executor, [this] {
        std::optional<RoomFor> room;
        {
          MutexLock lock(mu_);
          room = std::exchange(wanted_, std::nullopt);
        }
        if (room) Run(*room, Kind::kOfOthers);
        return room.has_value();
      }) {}

void Drainer::DrainSoon(const RoomFor& room) {
  if (busy_.load() || context_.clock->Now() < next_try_[0].load()) return;
  {
    MutexLock lock(mu_);
    wanted_ = room;
  }
  pump_.Kick();
}

bool Drainer::Drain(const RoomFor& room) {
  if (BlocksInHost(context_) > kSmallHostScan || !Run(room, Kind::kOfOthers)) return false;
  // The task of the executor is done.
  MutexLock lock(mu_);
  if (wanted_ && wanted_->owner == room.owner) wanted_.reset();
  return true;
}

bool Drainer::Compact(const RoomFor& room) {
  return BlocksInHost(context_) <= kSmallHostScan && Run(room, Kind::kOwn);
}

bool Drainer::Run(const RoomFor& room, Kind kind) {
  std::atomic<TimePoint>& next_try = next_try_[static_cast<size_t>(kind)];
  if (context_.clock->Now() < next_try.load() || busy_.exchange(true)) return false;
  // Somebody may have emptied one for it meanwhile.
  HostTier* const host = context_.tiers.host;
  const bool wanted = kind == Kind::kOwn || host->HasLessThanItsShare(room);
  const bool emptied = wanted && Empty(room, kind == Kind::kOwn ? host->OwnSegments(room)
                                                                : host->DrainCandidates(room));
  if (!emptied) next_try.store(context_.clock->Now() + kPauseAfterFailure);
  busy_.store(false);
  return emptied;
}

bool Drainer::Empty(const RoomFor& room, const std::vector<uint32_t>& candidates) {
  const auto segment = Choose(candidates);
  HostTier* const host = context_.tiers.host;
  if (!segment || !host->BeginDrain(*segment, room)) return false;
  // Nothing new comes now. A block that came since the segment was chosen may have to stay.
  if (const auto blocks = BlocksIn(*segment)) {
    uint64_t budget = host->UsedBytesIn(*segment);
    for (const Found& found : *blocks) {
      if (!Clear(found, *segment, &budget)) break;
    }
  }
  return host->EndDrain();
}

std::optional<uint32_t> Drainer::Choose(const std::vector<uint32_t>& candidates) {
  struct Use {
    uint64_t bytes = 0;
    bool pinned = false;
    bool only_moves = false;
    uint64_t blocks = 0;
    double last_uses = 0;
  };
  if (candidates.empty()) return std::nullopt;
  HostTier* const host = context_.tiers.host;
  std::vector<Use> uses(host->segment_count());
  ForEachBlockInHost(
      context_, [&](const NamespacePtr&, const BlockIndex& index, BlockRef ref, bool pinned) {
        const BlockMeta& meta = index.MetaAt(ref);
        const bool large = meta.bytes_in(kHost) > kMaxMovedBytes;
        // It may be moved, but not evicted.
        const bool only_moves = meta.dirty_in(kHost) || index.IsHeldByLease(ref, kHost);
        for (const PartPlace& part : index.PartsOf(ref)) {
          Use& use = uses[host->SegmentOf(part.In(kHost))];
          use.bytes += HostRoom(part.bytes[kHost]);
          use.pinned |= pinned || (only_moves && large);
          use.only_moves |= only_moves;
          use.last_uses += meta.last_use;
          ++use.blocks;
        }
      });
  using Cost = std::tuple<bool, uint64_t, double>;
  std::optional<std::pair<Cost, uint32_t>> best;
  const uint64_t grain = host->max_extent_bytes() / 8;
  for (const uint32_t segment : candidates) {
    const Use& use = uses[segment];
    // Other bytes are reserved, or of blocks that are not complete.
    if (use.pinned || use.bytes != host->UsedBytesIn(segment)) continue;
    const double mean = use.blocks == 0 ? 0 : use.last_uses / static_cast<double>(use.blocks);
    const Cost cost{use.only_moves, use.bytes / grain, mean};
    if (!best || cost < best->first) best.emplace(cost, segment);
  }
  if (!best) return std::nullopt;
  return best->second;
}

std::optional<std::vector<Drainer::Found>> Drainer::BlocksIn(uint32_t segment) {
  HostTier* const host = context_.tiers.host;
  std::vector<Found> found;
  uint64_t bytes = 0;
  ForEachBlockInHost(
      context_, [&](const NamespacePtr& ns, const BlockIndex& index, BlockRef ref, bool) {
        bool here = false;
        for (const PartPlace& part : index.PartsOf(ref)) {
          if (host->SegmentOf(part.In(kHost)) != segment) continue;
          here = true;
          bytes += HostRoom(part.bytes[kHost]);
        }
        if (!here) return;
        found.push_back(
            {ns, index.KeyAt(ref), index.MetaAt(ref).last_use, index.HasMoreBelow(ref, kHost)});
      });
  if (bytes != host->UsedBytesIn(segment)) return std::nullopt;
  // A block that makes room for another must lie elsewhere: the less valuable ones, and the ends of
  // paths, are gone from here by then.
  std::sort(found.begin(), found.end(), [](const Found& x, const Found& y) {
    return std::tie(x.rank, x.more_below) < std::tie(y.rank, y.more_below);
  });
  return found;
}

Extents Drainer::RoomElsewhere(const NamespaceState& ns, std::span<const uint32_t> lengths,
                               uint64_t below, uint64_t limit, uint64_t* budget) {
  HostTier* const host = context_.tiers.host;
  const RoomFor room{evictor_.RoomOf(ns).owner, Lending::kSealed, /*grow=*/false};
  const Victims victims{.used_before = below, .leased = false, .beneficiary = ns.tenant().get()};
  uint64_t wanted = 0;
  for (const uint32_t length : lengths) wanted += HostRoom(length);
  if (wanted > kMaxMovedBytes) return {};
  Extents extents;
  for (uint64_t evicted = 0; extents.size() < lengths.size();) {
    const auto extent = host->ReserveFor(room, lengths[extents.size()]);
    if (extent.ok()) {
      extents.push_back(*extent);
      continue;
    }
    const bool may_evict = *budget > 0 && evicted < limit;
    const uint64_t freed = may_evict ? evictor_.EvictLowest(kHost, victims, room.owner) : 0;
    if (freed == 0) {
      evictor_.ReleaseAll(kHost, extents);
      return {};
    }
    evicted += HostRoom(freed);
    *budget -= std::min(*budget, HostRoom(freed));
  }
  return extents;
}

bool Drainer::Clear(const Found& found, uint32_t segment, uint64_t* budget) {
  NamespaceState& ns = *found.ns;
  HostTier* const host = context_.tiers.host;
  const auto lies_here = [&](const PartPlaces& parts) {
    return std::any_of(parts.begin(), parts.end(), [&](const PartPlace& part) {
      return host->SegmentOf(part.In(kHost)) == segment;
    });
  };
  PartPlaces parts;
  absl::InlinedVector<uint32_t, 1> lengths;
  uint64_t below = 0;
  bool more_below = false;
  {
    NamespaceLock lock(ns, context_.tiers);
    const auto ref = ns.index.FindAlive(found.key);
    if (!ref || !ns.index.MetaAt(*ref).in(kHost)) return true;
    parts = ns.index.PartsOf(*ref);
    if (!lies_here(parts)) return true;
    if (ns.dropped.load(std::memory_order_relaxed) || ns.index.IsPinned(*ref)) return false;
    below = ns.index.MetaAt(*ref).last_use;
    more_below = ns.index.HasMoreBelow(*ref, kHost);
  }
  // Without it, nothing after it on its path would be found: a block that is worth as much goes
  // rather, at the end of a path.
  if (more_below) ++below;
  uint64_t limit = 0;
  for (const PartPlace& part : parts) {
    lengths.push_back(part.bytes[kHost]);
    limit += kEvictedPerMoved * HostRoom(part.bytes[kHost]);
  }
  Extents room = RoomElsewhere(ns, lengths, below, more_below ? UINT64_MAX : limit, budget);
  bool gone = true, corrupt = false;
  {
    NamespaceLock lock(ns, context_.tiers);
    const auto ref = ns.index.FindAlive(found.key);
    // To make room may have evicted it.
    if (ref && ns.index.LiesAt(*ref, kHost, parts)) {
      if (ns.dropped.load(std::memory_order_relaxed) || ns.index.IsPinned(*ref)) {
        gone = false;
      } else if (!room.empty()) {
        for (size_t i = 0; i < parts.size() && !corrupt; ++i) {
          const std::span<std::byte> to = host->Map(room[i]);
          const Extent from = parts[i].In(kHost);
          BulkCopy(to.data(), host->Map(from).data(), to.size());
          // Others could write there until now. From here on it counts as sealed.
          corrupt = host->PlaceOf(from.id).lending == Lending::kLent &&
                    !VerifyPartBytes(ns.storage().in_tier[kHost], parts[i].rect, to).ok();
        }
        if (!corrupt) {
          ns.index.Relocate(*ref, kHost, room, &lock.released);
          room.clear();
        }
      } else if (ns.index.MetaAt(*ref).dirty_in(kHost) || ns.index.IsHeldByLease(*ref, kHost) ||
                 !Evictor::MayGo(ns, kHost, {})) {
        gone = false;
      } else {
        evictor_.CountEvicted(
            ns, ns.index.EvictBlock(*ref, kHost, &lock.released, context_.UseTicksNow()), kHost);
      }
    }
  }
  evictor_.ReleaseAll(kHost, room);
  if (corrupt) {
    log::Warn("block_corrupt", {{"tier", "host"}, {"key", found.key.Hex()}, {"trace", ""}});
    context_.RemoveCorrupt(ns, found.key, kHost, parts[0].extent[kHost]);
  }
  return gone;
}

}  // namespace cairn::cache
