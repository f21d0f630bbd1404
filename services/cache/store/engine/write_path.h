#pragma once
// Two-phase writes: reserve, fill, commit. The first commit of a part wins, however many writers
// have reserved it (../index/pending_blocks.h). Thread-safe.

#include "services/cache/store/engine/block_intake.h"
#include "services/cache/store/engine/in_place.h"
#include "services/cache/store/lease/session_table.h"
#include "services/cache/store/mover/evictor.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class WritePath {
 public:
  WritePath(NodeContext* context, SessionTable* sessions, Evictor* evictor, BlockIntake* intake);

  // As CacheEngine's.
  Result<std::vector<Result<ReservationId>>> Reserve(SessionId session,
                                                     const Fingerprint& fingerprint,
                                                     std::span<const ReservePartRequest> parts,
                                                     Duration ttl);
  // As InPlaceEngine's.
  Result<std::vector<Result<PlacedReservation>>> ReserveInPlace(
      SessionId session, const Fingerprint& fingerprint, std::span<const ReservePartRequest> parts);
  Status Write(SessionId session, ReservationId id, uint64_t offset,
               std::span<const std::byte> data);
  Result<std::vector<Status>> Commit(SessionId session, std::span<const ReservationId> ids,
                                     std::string_view trace);
  Status Abort(SessionId session, std::span<const ReservationId> ids);

  // Reservations that came out of the session table without a commit.
  void Drop(const std::vector<ReservationPtr>& reservations);
  // Gives back parts of blocks that were not completed in time; `all`: of every block of the
  // namespace.
  void ExpireIncomplete(NamespaceState& ns, bool all);

  uint64_t reserved_bytes() const { return reserved_bytes_.load(std::memory_order_relaxed); }

 private:
  // INVALID_ARGUMENT that names the field which no part may have.
  Status CheckPart(const NamespaceState& ns, const ReservePartRequest& part) const;
  // INVALID_ARGUMENT, which names `field`: the block `key` is here, in another pool.
  static Status CheckPool(const NamespaceState& ns, const BlockKey& key, uint32_t here,
                          uint32_t pool, std::string_view field);
  // A block that is over makes way. ALREADY_EXISTS: the block is here, or this part of it is
  // committed. INVALID_ARGUMENT: the part crosses a committed one, or the block or its
  // parent is one of another pool.
  Status CheckFits(NamespaceState& ns, const BlockKey& key, const format::PartRect& rect,
                   const std::optional<BlockKey>& parent, ReleaseList* released)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ns.mu);
  // The same for a reservation that is committed. NOT_FOUND: its namespace was dropped.
  Status CheckCommit(NamespaceState& ns, const Reservation& r, ReleaseList* released)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ns.mu);
  Result<PlacedReservation> ReserveOne(SessionId session, const NamespacePtr& ns,
                                       const ReservePartRequest& part, TimePoint deadline,
                                       const RoomFor& room);
  Status CommitOne(Reservation& reservation);
  // The writer is done, one way or the other.
  void Leave(Reservation& reservation);

  NodeContext& context_;
  SessionTable& sessions_;
  Evictor& evictor_;
  BlockIntake& intake_;
  const uint64_t max_reserved_bytes_;
  const uint64_t max_incomplete_bytes_;
  std::atomic<uint64_t> reserved_bytes_{0};
  std::atomic<uint64_t> incomplete_bytes_{0};
};

}  // namespace cairn::cache
