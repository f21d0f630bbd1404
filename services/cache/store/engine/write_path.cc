#include "services/cache/store/engine/write_path.h"

#include <cmath>

#include "common/log/log.h"
#include "common/memory/bulk_copy.h"
#include "services/cache/store/block/part_grid.h"
#include "services/cache/store/engine/validate.h"

namespace cairn::cache {
namespace {

constexpr size_t kMaxParts = 4096;

void ReleaseParts(std::span<const PartPlace> parts, ReleaseList* released) {
  for (const PartPlace& part : parts) {
    released->push_back({TierKind::kHost, part.In(TierKind::kHost)});
  }
}

uint64_t OrShareOf(uint64_t configured, const Tiers& tiers, uint64_t divisor) {
  return configured != 0 ? configured : tiers.host->GetStats().capacity_bytes / divisor;
}

}  // namespace

WritePath::WritePath(NodeContext* context, SessionTable* sessions, Evictor* evictor,
                     BlockIntake* intake)
    : context_(*context),
      sessions_(*sessions),
      evictor_(*evictor),
      intake_(*intake),
      max_reserved_bytes_(OrShareOf(context->options.max_reserved_bytes, context->tiers, 2)),
      max_incomplete_bytes_(OrShareOf(context->options.max_incomplete_bytes, context->tiers, 4)) {}

Result<std::vector<Result<ReservationId>>> WritePath::Reserve(
    SessionId session, const Fingerprint& fingerprint, std::span<const ReservePartRequest> parts,
    Duration ttl) {
  CAIRN_ASSIGN_OR_RETURN(const std::string tenant, sessions_.TenantOf(session));
  CAIRN_RETURN_IF_ERROR(CheckCount("parts", parts.size(), kMaxParts));
  CAIRN_ASSIGN_OR_RETURN(const Duration lifetime,
                         CheckTtl("ttl", ttl, context_.options.default_reservation_ttl,
                                  context_.options.max_reservation_ttl));
  CAIRN_ASSIGN_OR_RETURN(const NamespacePtr ns, context_.registry.Get(fingerprint, tenant));
  CAIRN_RETURN_IF_ERROR(context_.CheckPace(*ns));
  const TimePoint deadline = context_.clock->Now() + lifetime;
  std::vector<Result<ReservationId>> results;
  results.reserve(parts.size());
  const RoomFor room = evictor_.RoomOf(*ns);
  for (const ReservePartRequest& part : parts) {
    const auto placed = ReserveOne(session, ns, part, deadline, room);
    results.push_back(placed.ok() ? Result<ReservationId>(placed->id) : placed.status());
  }
  return results;
}

Result<std::vector<Result<PlacedReservation>>> WritePath::ReserveInPlace(
    SessionId session, const Fingerprint& fingerprint, std::span<const ReservePartRequest> parts) {
  CAIRN_ASSIGN_OR_RETURN(const std::string tenant, sessions_.TenantOf(session));
  CAIRN_RETURN_IF_ERROR(CheckCount("parts", parts.size(), kMaxParts));
  CAIRN_ASSIGN_OR_RETURN(const NamespacePtr ns, context_.registry.Get(fingerprint, tenant));
  CAIRN_RETURN_IF_ERROR(context_.CheckPace(*ns));
  const RoomFor room{evictor_.RoomOf(*ns).owner, Lending::kLent};
  if (room.owner == kCommon) {
    return Errorf(StatusCode::kFailedPrecondition, "tenant '{}' has no session on this machine",
                  ns->spec.tenant);
  }
  std::vector<Result<PlacedReservation>> results;
  results.reserve(parts.size());
  for (const ReservePartRequest& part : parts) {
    results.push_back(ReserveOne(session, ns, part, TimePoint::max(), room));
  }
  return results;
}

Status WritePath::CheckPart(const NamespaceState& ns, const ReservePartRequest& part) const {
  CAIRN_RETURN_IF_ERROR(ValidatePart(ns.storage().pushed, part.part, part.bytes,
                                     context_.tiers.host->max_extent_bytes()));
  if (!std::isfinite(part.compute_seconds) || part.compute_seconds < 0) {
    return InvalidArgument("field 'compute_seconds': got {}, expected a number of at least 0",
                           part.compute_seconds);
  }
  if (part.parent && *part.parent == part.key) {
    return InvalidArgument("field 'parent': got the block's own key {}, expected another block's",
                           part.key.Hex());
  }
  if (const uint32_t pool = ns.grid.PoolOf(part.part); part.parent && !ns.grid.IsChained(pool)) {
    return InvalidArgument("field 'parent': got {}, expected none: blocks of pool '{}' stand alone",
                           part.parent->Hex(), ns.spec.layout.Pools()[pool].name);
  }
  return OkStatus();
}

Status WritePath::CheckPool(const NamespaceState& ns, const BlockKey& key, uint32_t here,
                            uint32_t pool, std::string_view field) {
  if (here == pool) return OkStatus();
  const auto pools = ns.spec.layout.Pools();
  return InvalidArgument("field '{}': block {} is one of pool '{}', expected one of pool '{}'",
                         field, key.Hex(), pools[here].name, pools[pool].name);
}

Status WritePath::CheckFits(NamespaceState& ns, const BlockKey& key, const format::PartRect& rect,
                            const std::optional<BlockKey>& parent, ReleaseList* released) {
  const uint32_t pool = ns.grid.PoolOf(rect);
  if (parent && ns.grid.pools() > 1) {
    const auto above = ns.index.FindAlive(*parent);
    if (above) {
      CAIRN_RETURN_IF_ERROR(CheckPool(ns, *parent, ns.index.PoolAt(*above), pool, "parent"));
    }
  }
  if (const auto here = ns.index.FindAlive(key); here && !context_.DropIfOver(ns, key, released)) {
    CAIRN_RETURN_IF_ERROR(CheckPool(ns, key, ns.index.PoolAt(*here), pool, "key"));
    // A writer who knows the parent teaches it to blocks that came without.
    if (parent) ns.index.Link(key, *parent);
    return Errorf(StatusCode::kAlreadyExists, "block {} is here", key.Hex());
  }
  switch (ns.pending.Fit(key, rect)) {
    case PartFit::kFree:
      break;
    case PartFit::kCovered:
      return Errorf(StatusCode::kAlreadyExists, "part of block {} is committed", key.Hex());
    case PartFit::kOtherPool:
      return InvalidArgument(
          "field 'key': parts of block {} of another pool are committed, expected parts of pool "
          "'{}'",
          key.Hex(), ns.spec.layout.Pools()[pool].name);
    case PartFit::kOverlaps:
      return InvalidArgument(
          "field 'part': overlaps in part with one of block {} that is committed; expected one "
          "that fits beside it, lies inside or covers it",
          key.Hex());
  }
  return OkStatus();
}

Result<PlacedReservation> WritePath::ReserveOne(SessionId session, const NamespacePtr& ns,
                                                const ReservePartRequest& part, TimePoint deadline,
                                                const RoomFor& room) {
  CAIRN_RETURN_IF_ERROR(CheckPart(*ns, part));
  CAIRN_ASSIGN_OR_RETURN(MemoryCharge memory,
                         context_.memory.Charge(MemoryItem::kLeases, Reservation::kMemoryBytes));
  CAIRN_RETURN_IF_ERROR(intake_.MakeIndexRoom());
  {
    NamespaceLock lock(*ns, context_.tiers);
    if (ns->dropped.load(std::memory_order_relaxed)) {
      return Errorf(StatusCode::kNotFound, "field 'fingerprint': namespace {} was dropped",
                    ns->fingerprint.Hex());
    }
    CAIRN_RETURN_IF_ERROR(CheckFits(*ns, part.key, part.part, part.parent, &lock.released));
    ns->pending.AddWriter(part.key);
  }
  const auto leave = [&] {
    {
      NamespaceLock lock(*ns, context_.tiers);
      ns->pending.RemoveWriter(part.key);
    }
    context_.arrivals.Tell(ns.get(), part.key);
  };
  const uint64_t taken = HostRoom(part.bytes);
  const uint64_t reserved = reserved_bytes_.fetch_add(taken) + taken;
  if (reserved > max_reserved_bytes_) {
    reserved_bytes_.fetch_sub(taken);
    leave();
    return Errorf(StatusCode::kResourceExhausted,
                  "reservations: {} bytes wanted in all, the limit is {}", reserved,
                  max_reserved_bytes_);
  }
  const auto length = static_cast<uint32_t>(part.bytes);
  auto held = evictor_.Hold(*ns, TierKind::kHost, {&length, 1});
  if (!held.ok()) {
    reserved_bytes_.fetch_sub(taken);
    leave();
    return held.status();
  }
  const auto extent = evictor_.Reserve(TierKind::kHost, length, {.beneficiary = ns->tenant().get()},
                                       room, ns.get());
  if (!extent.ok()) {
    reserved_bytes_.fetch_sub(taken);
    leave();
    return Annotate(
        extent.status(),
        "host tier, after eviction of all that is neither being read in its place, nor waiting for "
        "its copy to disk, nor leased without one");
  }
  auto reservation = std::make_shared<Reservation>(context_.tiers.host, *extent, &reserved_bytes_);
  reservation->ns = ns;
  reservation->memory = std::move(memory);
  reservation->held = *std::move(held);
  reservation->key = part.key;
  reservation->parent = part.parent;
  reservation->rect = part.part;
  reservation->at_start = part.first_position == 0;
  reservation->recompute_seconds = static_cast<float>(part.compute_seconds);
  reservation->lent = room.lending == Lending::kLent;
  // The node does not see what is written in place. The old bytes are the tenant's own (HostTier),
  // but must not become a block by themselves.
  if (reservation->lent) ClearHeader(part.part, reservation->bytes());
  auto id = sessions_.AddReservation(session, reservation, deadline);
  // A drop that came meanwhile has not seen this reservation.
  if (id.ok() && ns->dropped.load()) {
    sessions_.TakeReservation(session, *id, context_.clock->Now());
    id = Errorf(StatusCode::kNotFound, "field 'fingerprint': namespace {} was dropped",
                ns->fingerprint.Hex());
  }
  if (!id.ok()) {
    leave();
    return id.status();
  }
  context_.Spend(*ns, part.bytes);
  return PlacedReservation{*id, extent->id};
}

Status WritePath::Write(SessionId session, ReservationId id, uint64_t offset,
                        std::span<const std::byte> data) {
  CAIRN_ASSIGN_OR_RETURN(const ReservationPtr reservation,
                         sessions_.FindReservation(session, id, context_.clock->Now()));
  const std::span<std::byte> bytes = reservation->bytes();
  if (offset > bytes.size() || data.size() > bytes.size() - offset) {
    return Errorf(StatusCode::kOutOfRange,
                  "field 'offset': got {} bytes at {}, expected to end within the part's {} bytes",
                  data.size(), offset, bytes.size());
  }
  CAIRN_RETURN_IF_ERROR(Annotate(reservation->BeginWrite(offset, data.size()),
                                 fmt::format("field 'reservation_id': reservation {}", id)));
  BulkCopy(bytes.data() + offset, data.data(), data.size());
  reservation->EndWrite();
  context_.counters.pushed_bytes.Add(data.size());
  return OkStatus();
}

Result<std::vector<Status>> WritePath::Commit(SessionId session, std::span<const ReservationId> ids,
                                              std::string_view trace) {
  CAIRN_RETURN_IF_ERROR(sessions_.Check(session));
  CAIRN_RETURN_IF_ERROR(CheckCount("reservation_ids", ids.size(), kMaxParts));
  std::vector<Status> results;
  results.reserve(ids.size());
  for (const ReservationId id : ids) {
    const ReservationPtr reservation =
        sessions_.TakeReservation(session, id, context_.clock->Now());
    if (reservation == nullptr) {
      results.push_back(Errorf(
          StatusCode::kNotFound,
          "field 'reservation_id': no reservation {} in this session; it may have expired", id));
      continue;
    }
    Status status = CommitOne(*reservation);
    Leave(*reservation);
    if (!status.ok()) {
      log::Debug("commit_refused", {{"trace", std::string(trace)},
                                    {"key", reservation->key.Hex()},
                                    {"error", Message(status)}});
    } else {
      context_.counters.commits.Add();
    }
    results.push_back(std::move(status));
  }
  return results;
}

Status WritePath::CommitOne(Reservation& r) {
  if (!r.Seal()) {
    return Errorf(StatusCode::kFailedPrecondition, "part of block {}: a write is still running",
                  r.key.Hex());
  }
  NamespaceState& ns = *r.ns;
  if (!r.lent) {
    // Somebody else may have been faster: then nobody needs the bytes, and they are not hashed.
    NamespaceLock lock(ns, context_.tiers);
    CAIRN_RETURN_IF_ERROR(CheckCommit(ns, r, &lock.released));
  }
  if (!r.lent) CAIRN_RETURN_IF_ERROR(r.CheckWhole());
  // Hashing lent bytes here would prove nothing about them later, and cost a second pass over each
  // part: those who read them verify every slice.
  CAIRN_RETURN_IF_ERROR(r.lent ? CheckedHeader(ns.storage().pushed, r.rect, r.bytes()).status()
                               : VerifyPartBytes(ns.storage().pushed, r.rect, r.bytes()));
  std::optional<PendingBlocks::Complete> block;
  {
    NamespaceLock lock(ns, context_.tiers);
    CAIRN_RETURN_IF_ERROR(CheckCommit(ns, r, &lock.released));
    const uint64_t before = ns.pending.incomplete_bytes();
    if (!ns.pending.Completes(r.key, r.rect) &&
        incomplete_bytes_.load() + HostRoom(r.extent().length) > max_incomplete_bytes_) {
      return Errorf(StatusCode::kResourceExhausted,
                    "incomplete blocks: {} bytes used, the limit is {}", incomplete_bytes_.load(),
                    max_incomplete_bytes_);
    }
    PartPlace place{.rect = r.rect};
    place.Set(TierKind::kHost, r.extent());
    std::vector<PartPlace> replaced;
    block = ns.pending.Commit(r.key, place, {r.parent, r.recompute_seconds, r.at_start},
                              context_.clock->Now() + context_.options.incomplete_ttl, &replaced);
    ReleaseParts(replaced, &lock.released);
    r.TakeExtent();
    incomplete_bytes_.fetch_add(ns.pending.incomplete_bytes() - before);  // Wraps when it falls.
    if (!block) return OkStatus();
    intake_.Show(ns, r.key, *block);
  }
  intake_.CopyLater(r.ns, r.key, block->parts);
  return OkStatus();
}

Status WritePath::CheckCommit(NamespaceState& ns, const Reservation& r, ReleaseList* released) {
  if (ns.dropped.load(std::memory_order_relaxed)) {
    return Errorf(StatusCode::kNotFound, "namespace {} was dropped", ns.fingerprint.Hex());
  }
  return CheckFits(ns, r.key, r.rect, r.parent, released);
}

Status WritePath::Abort(SessionId session, std::span<const ReservationId> ids) {
  CAIRN_RETURN_IF_ERROR(sessions_.Check(session));
  for (const ReservationId id : ids) {
    const ReservationPtr reservation =
        sessions_.TakeReservation(session, id, context_.clock->Now());
    if (reservation != nullptr) Leave(*reservation);
  }
  return OkStatus();
}

void WritePath::Drop(const std::vector<ReservationPtr>& reservations) {
  for (const ReservationPtr& reservation : reservations) Leave(*reservation);
}

void WritePath::Leave(Reservation& r) {
  {
    NamespaceLock lock(*r.ns, context_.tiers);
    r.ns->pending.RemoveWriter(r.key);
  }
  // The block is stored now, or has a writer less.
  context_.arrivals.Tell(r.ns.get(), r.key);
  context_.progress.Notify();
}

void WritePath::ExpireIncomplete(NamespaceState& ns, bool all) {
  std::vector<PartPlace> dropped;
  NamespaceLock lock(ns, context_.tiers);
  const uint64_t before = ns.pending.incomplete_bytes();
  ns.pending.Expire(context_.clock->Now(), all, &dropped);
  incomplete_bytes_.fetch_add(ns.pending.incomplete_bytes() - before);
  ReleaseParts(dropped, &lock.released);
}

}  // namespace cairn::cache
