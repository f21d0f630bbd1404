#include "services/cache/store/engine/in_place_path.h"

#include "common/keys/call_limits.h"
#include "common/log/log.h"
#include "services/cache/store/block/part_grid.h"
#include "services/cache/store/engine/validate.h"

namespace cairn::cache {
namespace {

constexpr TierKind kDevice = TierKind::kDevice;

// Grows to the longest path that a thread has seen, so that the paths after it need no memory.
std::vector<BlockRef>& PathBuffer() {
  thread_local std::vector<BlockRef> path;
  path.clear();
  return path;
}

// Appends the parts of a block, up to `most` places in all. False: the reader cannot read all of
// them, and nothing was appended.
bool PlaceOnDevice(const DeviceReach& reach, const PartPlaces& parts, uint32_t block, size_t most,
                   std::vector<PlacedPart>* places) {
  if (!std::all_of(parts.begin(), parts.end(),
                   [&](const PartPlace& part) { return reach.CanRead(part.extent[kDevice]); })) {
    return false;
  }
  for (const PartPlace& part : parts) {
    if (places->size() == most) break;
    PlacedPart& placed = places->emplace_back();
    placed.state = PlacedPart::State::kDevice;
    placed.tier = kDevice;
    placed.block = block;
    placed.bytes = part.bytes[kDevice];
    placed.part = part.rect;
    placed.extent = part.extent[kDevice];
  }
  return true;
}

}  // namespace

Result<MatchResult> InPlacePath::Match(const MatchRequest& request, size_t max_places,
                                       std::vector<PlacedPart>* places, const DeviceReach* reach) {
  LeasePtr lease;
  CAIRN_ASSIGN_OR_RETURN(MatchResult result, reads_.Match(request, kUntilRelease, &lease));
  if (places == nullptr || lease == nullptr) return result;
  // Match has asked for what is on disk.
  const Status placed = Place(*lease, 0, lease->blocks, max_places, reach, places, nullptr);
  if (placed.ok()) return result;
  // The namespace was dropped between the two looks. The caller never learns the lease's name, so
  // nobody would release it.
  if (result.lease) (void)reads_.Release(request.session, {&*result.lease, 1});
  return placed;
}

Status InPlacePath::Place(const Lease& lease, uint32_t begin, uint32_t end, size_t max_places,
                          const DeviceReach* reach, std::vector<PlacedPart>* places,
                          std::vector<Elsewhere>* wanted) {
  // Every block is one place at least.
  end = static_cast<uint32_t>(std::min<uint64_t>(end, begin + uint64_t{max_places}));
  const size_t most = places->size() + max_places;
  NamespaceState& ns = *lease.ns;
  std::vector<BlockRef>& path = PathBuffer();
  {
    NamespaceLock lock(ns, context_.tiers);
    // Under the lock: a lease that ends unpins under it too.
    if (lease.ended.load(std::memory_order_acquire) != MissReason::kNone || ns.dropped.load()) {
      return Errorf(StatusCode::kNotFound, "field 'lease_id': the lease has ended");
    }
    // Other leases let copies go, and their places get other bytes.
    if (lease.kind != PinKind::kPlace) {
      return Errorf(StatusCode::kNotFound,
                    "field 'lease_id': the lease keeps blocks and not their places, expected one "
                    "of a match in place");
    }
    lease.ns->mu.AssertHeld();  // `ns` by its other name.
    if (!lease.Find(begin, end, &path)) {
      return Errorf(StatusCode::kNotFound, "field 'lease_id': the lease's path is gone");
    }
    size_t run = 0;
    uint32_t run_end = lease.runs.empty() ? 0 : lease.runs[0].blocks;
    for (uint32_t b = begin; b < end && places->size() < most; ++b) {
      while (b >= run_end && run + 1 < lease.runs.size()) run_end += lease.runs[++run].blocks;
      const BlockRef ref = path[b - begin];
      const BlockMeta& meta = ns.index.MetaAt(ref);
      PlacedPart placed;
      placed.block = b;
      if (reach != nullptr && meta.in(kDevice) &&
          PlaceOnDevice(*reach, ns.index.PartsOf(ref), b, most, places)) {
        continue;
      }
      placed.tier = SlowerOf(TierKind::kHost, lease.runs[run].tier);
      if (meta.in(TierKind::kHost)) {
        if ((meta.flags & BlockMeta::kManyParts) == 0) {
          placed.bytes = meta.bytes[TierKind::kHost];
          placed.part = ns.index.WholeAt(ref);
          placed.extent = meta.extent[TierKind::kHost];
          places->push_back(placed);
          continue;
        }
        for (const PartPlace& part : ns.index.PartsOf(ref)) {
          if (places->size() == most) break;
          placed.bytes = part.bytes[TierKind::kHost];
          placed.part = part.rect;
          placed.extent = part.extent[TierKind::kHost];
          places->push_back(placed);
        }
        continue;
      }
      if (meta.alive()) {
        placed.tier = meta.served_from();
        placed.state = PlacedPart::State::kPending;
        placed.bytes = meta.served_bytes();
        if (wanted != nullptr) {
          wanted->push_back({{ns.index.KeyAt(ref), placed.bytes}, *placed.tier});
        }
      } else {
        placed.state = PlacedPart::State::kFailed;
        // Nothing but damage takes a block away under a lease.
        placed.reason = MissReason::kCorrupt;
        context_.counters.misses[static_cast<size_t>(placed.reason)].Add();
      }
      places->push_back(placed);
    }
  }
  return OkStatus();
}

Status InPlacePath::Locate(const LocateRequest& request, std::vector<PlacedPart>* places) {
  CAIRN_ASSIGN_OR_RETURN(const LeasePtr lease, sessions_.FindLease(request.session, request.lease,
                                                                   context_.clock->Now()));
  const uint32_t covers = lease->covers();
  const uint32_t end = request.block_end == 0 ? covers : request.block_end;
  if (request.block_begin > end || end > covers) {
    return InvalidArgument("field 'blocks': got [{}, {}), expected a range within the lease's {}",
                           request.block_begin, end, covers);
  }
  std::vector<Elsewhere> wanted;
  const size_t most = places->size() + request.max_places;
  CAIRN_RETURN_IF_ERROR(Place(*lease, std::min(request.block_begin, lease->blocks),
                              std::min(end, lease->blocks), request.max_places, request.reach,
                              places, &wanted));
  for (uint32_t b = std::max(request.block_begin, lease->blocks); b < end && places->size() < most;
       ++b) {
    PlacedPart& placed = places->emplace_back();
    placed.state = PlacedPart::State::kSource;
    placed.tier = std::nullopt;
    placed.block = b;
    const uint64_t bytes = lease->located[b - lease->blocks].bytes;
    placed.bytes = static_cast<uint32_t>(std::min<uint64_t>(bytes, UINT32_MAX));
  }
  // Those that are on their way already are not asked for twice: a promotion that found no room has
  // left the queue.
  ByTier<std::vector<MoveQueue::Wanted>> missing;
  for (const Elsewhere& e : wanted) {
    if (!promoters_.IntoHost(e.tier)->IsPending(*lease->ns, e.block.key)) {
      missing[e.tier].push_back(e.block);
    }
  }
  for (const TierKind tier : context_.tiers.kinds()) {
    if (missing[tier].empty()) continue;
    Promoter& promoter = *promoters_.IntoHost(tier);
    promoter.Request(lease->ns, missing[tier], MovePriority::kDemand, lease);
    promoter.Kick();
  }
  return OkStatus();
}

Status InPlacePath::Report(SessionId session, LeaseId lease_id, uint32_t block,
                           bool reads_devices) {
  CAIRN_ASSIGN_OR_RETURN(const LeasePtr lease,
                         sessions_.FindLease(session, lease_id, context_.clock->Now()));
  if (block >= lease->covers()) {
    return InvalidArgument("field 'block': got {}, expected one of the lease's {}", block,
                           lease->covers());
  }
  // It was not read in place.
  if (block >= lease->blocks) return OkStatus();
  NamespaceState& ns = *lease->ns;
  PartPlaces parts;
  BlockKey key;
  PinId pin = kNoPin;
  bool on_device = false;
  uint32_t device_bytes = 0;
  {
    NamespaceLock lock(ns, context_.tiers);
    if (lease->ended.load(std::memory_order_acquire) != MissReason::kNone || ns.dropped.load()) {
      return Errorf(StatusCode::kNotFound, "field 'lease_id': the lease has ended");
    }
    std::vector<BlockRef>& path = PathBuffer();
    lease->ns->mu.AssertHeld();  // `ns` by its other name.
    if (!lease->Find(block, block + 1, &path)) return OkStatus();
    const BlockRef ref = path.front();
    const BlockMeta& meta = ns.index.MetaAt(ref);
    on_device = reads_devices && meta.in(kDevice);
    device_bytes = meta.bytes_in(kDevice);
    key = ns.index.KeyAt(ref);
    parts = ns.index.PartsOf(ref);
    // The bytes stay while they are looked at, also when the lease ends meanwhile.
    if (meta.in(TierKind::kHost)) pin = ns.index.PinBlock(ref);
  }
  if (pin == kNoPin) {
    if (on_device) VerifyOnDevice(lease, key, device_bytes);
    return OkStatus();
  }
  bool sound = true;
  for (const PartPlace& part : parts) {
    const auto bytes = context_.tiers.host->Map(part.In(TierKind::kHost));
    if (VerifyPartBytes(ns.storage().in_tier[TierKind::kHost], part.rect, bytes).ok()) continue;
    sound = false;
    log::Warn("block_corrupt", {{"tier", "host"}, {"key", key.Hex()}, {"trace", ""}});
    context_.RemoveCorrupt(ns, key, TierKind::kHost, part.extent[TierKind::kHost]);
    // The reader goes on without the block, whatever other tiers hold.
    context_.counters.misses[static_cast<size_t>(MissReason::kCorrupt)].Add();
    break;
  }
  // Then it was the other copy that the reader saw, and the next reader brings a new one.
  if (sound && on_device) context_.RemoveCorrupt(ns, key, kDevice, parts[0].extent[kDevice]);
  NamespaceLock lock(ns, context_.tiers);
  ns.index.Unpin(pin, &lock.released);
  return OkStatus();
}

void InPlacePath::VerifyOnDevice(const LeasePtr& lease, const BlockKey& key, uint32_t bytes) {
  Promoter& promoter = *promoters_.IntoHost(kDevice);
  const MoveQueue::Wanted wanted{key, bytes};
  promoter.Request(lease->ns, {&wanted, 1}, MovePriority::kDemand, lease);
  promoter.Kick();
}

Status InPlacePath::Exists(const Fingerprint& fingerprint, std::span<const BlockKey> keys,
                           std::span<std::optional<TierKind>> found) {
  CAIRN_RETURN_IF_ERROR(CheckCount("keys", keys.size(), kMaxKeysPerCall));
  CAIRN_CHECK(found.size() == keys.size());
  CAIRN_ASSIGN_OR_RETURN(const NamespacePtr ns, context_.registry.Get(fingerprint));
  std::fill(found.begin(), found.end(), std::nullopt);
  NamespaceLock lock(*ns, context_.tiers);
  if (ns->dropped.load(std::memory_order_relaxed)) return OkStatus();
  ns->index.FindAll(keys, found, context_.UseTicksNow());
  return OkStatus();
}

}  // namespace cairn::cache
