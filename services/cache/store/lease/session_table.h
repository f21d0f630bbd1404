#pragma once
// Sessions, and the leases and reservations that they own. A lease or reservation ends with its
// session, or at its own deadline. Thread-safe.
//
// This table only knows who owns what until when. The engine unpins and frees the objects that the
// table hands out. The table hands out each object exactly once.

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cairn/common/kv/miss_reason.h"
#include "services/cache/store/lease/known_parts.h"
#include "services/cache/store/lease/slice_set.h"
#include "services/cache/store/lease/written_ranges.h"
#include "services/cache/store/state/memory_account.h"
#include "services/cache/store/state/namespace_state.h"
#include "services/cache/store/tier/host_room.h"

namespace cairn::cache {

// A prefix that stays: one pin for each path that it lies on. That is one path, except for prompts
// whose blocks are not linked.
//
// Most leases only keep the blocks: copies in host may go while a slower tier has them. A lease of
// a process on this machine, which is told where bytes lie, keeps every copy where it is
// (PinKind::kPlace, index/pin_table.h).
struct Lease {
  struct Path {
    PinId pin = kNoPin;
    uint32_t count = 0;
  };
  // Appends its blocks [begin, end). False: some of them are gone, for example because the lease
  // ended.
  bool Find(uint32_t begin, uint32_t end, std::vector<BlockRef>* found) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ns->mu);

  // The pinned blocks, and after them those that a source located.
  uint32_t covers() const { return blocks + located_blocks.load(std::memory_order_acquire); }

  NamespacePtr ns;
  PinKind kind = PinKind::kLease;  // The kind of its pins.
  absl::InlinedVector<Path, 1> paths;
  uint32_t blocks = 0;
  std::vector<BlockIndex::Run> runs;  // Where the blocks were when they were matched.
  // Blocks after the pinned ones that were in no tier, but in a source. Nothing keeps them: a fetch
  // looks for them in the tiers, and then asks the source. Written once; then `located_blocks` says
  // how many they are.
  struct LocatedBlock {
    BlockKey key;
    uint64_t bytes = 0;  // An estimate.
  };
  std::vector<LocatedBlock> located;
  // Blocks that its owner has announced to write. It counts as a writer of each until it ends.
  std::vector<BlockKey> announced;
  // The charge of the lease, its pins included. Grows before anything else does.
  MemoryCharge memory;
  std::atomic<uint32_t> located_blocks{0};
  // For fetches of rows.
  SliceSet verified;
  // Read from a slower tier by themselves.
  SliceSet read_apart;
  KnownParts known;
  // Why it ended; kNone while it lives. Written once.
  std::atomic<MissReason> ended{MissReason::kNone};
};
using LeasePtr = std::shared_ptr<Lease>;

// Room for one part in the host tier. The room goes back when the last reference goes, unless a
// commit took it.
class Reservation {
 public:
  // Memory of one, with its places in the session table, at most.
  static constexpr uint64_t kMemoryBytes = 1024;

  Reservation(Tier* host, const Extent& extent, std::atomic<uint64_t>* reserved_bytes)
      : host_(host), extent_(extent), reserved_bytes_(reserved_bytes) {}
  ~Reservation() {
    reserved_bytes_->fetch_sub(HostRoom(extent_.length), std::memory_order_relaxed);
    if (!taken_) host_->Release(extent_);
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  NamespacePtr ns;
  BlockKey key;
  std::optional<BlockKey> parent;
  format::PartRect rect;
  bool at_start = false;  // The block's first position is 0.
  float recompute_seconds = 0;
  MemoryCharge memory;  // The charge of the reservation itself.
  HeldRoom held;        // For its room. After the commit it counts twice for a moment.
  // Its room is lent: the writer can change the bytes at any time, even after the commit.
  bool lent = false;

  const Extent& extent() const { return extent_; }
  std::span<std::byte> bytes() const { return host_->Map(extent_); }
  // Writers hold this while they copy `bytes` to `offset`, and from then on these count as written.
  // FAILED_PRECONDITION: it is sealed. RESOURCE_EXHAUSTED: more gaps than it can remember
  // (WrittenRanges). REQUIRES: within the extent; EndWrite follows.
  Status BeginWrite(uint64_t offset, uint64_t bytes);
  void EndWrite();
  // Ends writing, so that the bytes can be verified. False: somebody is writing, or it is already
  // sealed.
  bool Seal();
  // FAILED_PRECONDITION, which names the first missing byte, unless all bytes were written. Room
  // has the bytes of the block that lay there before, with right checksums, and nothing in them
  // tells whose they are. REQUIRES: sealed, not lent.
  Status CheckWhole() const;
  // The extent belongs to the index now.
  void TakeExtent() { taken_ = true; }

 private:
  Tier* const host_;
  const Extent extent_;
  std::atomic<uint64_t>* const reserved_bytes_;
  mutable Mutex mu_;
  WrittenRanges written_ ABSL_GUARDED_BY(mu_);
  int writers_ ABSL_GUARDED_BY(mu_) = 0;
  bool sealed_ ABSL_GUARDED_BY(mu_) = false;
  bool taken_ = false;  // Only the thread that sealed it may call it.
};
using ReservationPtr = std::shared_ptr<Reservation>;

class SessionTable {
 public:
  struct Ended {
    std::vector<LeasePtr> leases;
    std::vector<ReservationPtr> reservations;
  };

  SessionTable(size_t max_sessions, size_t max_leases_per_session)
      : max_sessions_(max_sessions), max_leases_(max_leases_per_session) {}

  // `tenant`: the only one that the session may use. Empty: any. `counted`: the tenant that the
  // session counts for, if any. RESOURCE_EXHAUSTED: too many are open, in all or for this tenant.
  Result<SessionId> Open(std::string_view name, std::string_view tenant,
                         std::shared_ptr<NodeTenant> counted = nullptr);
  Ended Close(SessionId session);
  // NOT_FOUND unless it is open.
  Status Check(SessionId session) const;
  // The tenant that the session named; empty: it may use all. NOT_FOUND unless it is open.
  // PERMISSION_DENIED: it has kNoTenant.
  Result<std::string> TenantOf(SessionId session) const;
  // The session's tenant has read or written the bytes. No effect if it is not open, or counts for
  // none.
  void Spend(SessionId session, uint64_t bytes, TimePoint now) const;

  // NOT_FOUND: the session is gone. RESOURCE_EXHAUSTED: it has too many.
  Result<LeaseId> AddLease(SessionId session, LeasePtr lease, TimePoint deadline);
  // RESOURCE_EXHAUSTED when the session could not take one more lease.
  Status CheckLeaseRoom(SessionId session) const;
  // NOT_FOUND: it does not exist, or has expired at `now`.
  Result<LeasePtr> FindLease(SessionId session, LeaseId id, TimePoint now) const;
  LeasePtr TakeLease(SessionId session, LeaseId id);  // nullptr: not there.
  Status RenewLease(SessionId session, LeaseId id, TimePoint now, TimePoint deadline);

  Result<ReservationId> AddReservation(SessionId session, ReservationPtr reservation,
                                       TimePoint deadline);
  Result<ReservationPtr> FindReservation(SessionId session, ReservationId id, TimePoint now) const;
  ReservationPtr TakeReservation(SessionId session, ReservationId id,
                                 TimePoint now);  // nullptr: not there.

  // Takes out everything whose deadline has come.
  Ended Expire(TimePoint now);
  // Takes out everything of a namespace that has a deadline. An entry without a deadline
  // (TimePoint::max()) stays: processes on this machine read or write those bytes in place, so only
  // their session ends it.
  Ended TakeAllOf(const NamespaceState& ns);

  size_t sessions() const;
  size_t leases() const;
  size_t reservations() const;

 private:
  template <typename T>
  struct Owned {
    T object;
    TimePoint deadline;
  };
  struct Session {
    std::string name;
    std::string tenant;  // Empty: it named none.
    std::shared_ptr<NodeTenant> counted;
    absl::flat_hash_map<LeaseId, Owned<LeasePtr>> leases;
    absl::flat_hash_map<ReservationId, Owned<ReservationPtr>> reservations;
  };
  struct Due {
    TimePoint deadline;
    SessionId session;
    uint64_t id;
    auto operator<=>(const Due&) const = default;
  };

  Status NoSession(SessionId session) const;

  const size_t max_sessions_;
  const size_t max_leases_;
  mutable Mutex mu_;
  absl::flat_hash_map<SessionId, Session> sessions_ ABSL_GUARDED_BY(mu_);
  std::set<Due> due_leases_ ABSL_GUARDED_BY(mu_);
  std::set<Due> due_reservations_ ABSL_GUARDED_BY(mu_);
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace cairn::cache
