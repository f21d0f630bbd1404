#pragma once
// The engine's interface for sessions on the node's own machine: where bytes lie, instead of bytes.
//
// Leases and reservations made here have no deadline: they end by release, or with their session.
// Their owner knows when the processes that may read and write the bytes are gone, and limits how
// much they hold.
//
// Thread-safe. Errors as CacheEngine's.

#include <cstdint>
#include <span>
#include <vector>

#include "services/cache/store/engine/cache_engine.h"

namespace cairn::cache {

// One part of a leased block.
struct PlacedPart {
  enum class State : uint8_t {
    kHost = 0,     // In the host tier, at `extent`, until the lease ends.
    kPending = 1,  // On its way there: ask again.
    kFailed = 2,   // A miss; `reason` says why.
    kSource = 3,   // A source located it: the bytes come with a fetch. `part` is empty.
    kDevice = 4,   // In the device tier, at `extent`, until the lease ends.
  };
  State state = State::kHost;
  std::optional<TierKind> tier = TierKind::kHost;  // Where it was found. nullopt: in a source.
  MissReason reason = MissReason::kNone;
  uint32_t block = 0;  // The number of the block in the lease.
  uint32_t bytes = 0;
  format::PartRect part;
  uint64_t extent = 0;  // Id in the host tier, or in the device tier.
};

// The memory that a session can read in addition to the host tier. Called under the lock of a
// namespace: must be quick and must not call the engine.
class DeviceReach {
 public:
  virtual ~DeviceReach() = default;
  // Where the extent of the device tier lies.
  virtual bool CanRead(uint64_t extent) const = 0;
};

struct LocateRequest {
  SessionId session = 0;
  LeaseId lease = 0;
  uint32_t block_begin = 0, block_end = 0;  // end 0: all.
  size_t max_places = SIZE_MAX;             // As in MatchInPlace.
  const DeviceReach* reach = nullptr;       // As in MatchInPlace.
};

struct PlacedReservation {
  ReservationId id = 0;
  uint64_t extent = 0;  // Id in the host tier, in a lent segment.
};

class InPlaceEngine {
 public:
  virtual ~InPlaceEngine() = default;

  // As CacheEngine::Match; lease_ttl is not read. `places`, if not null, gets the parts of all
  // blocks in order that were matched here, at most `max_places`: a caller that has no room for
  // more does not pay for more. Nothing is appended without a lease. `reach`: blocks that it can
  // read in the device tier are placed there (kDevice). nullptr: all are placed in host.
  virtual Result<MatchResult> MatchInPlace(const MatchRequest& request, size_t max_places,
                                           std::vector<PlacedPart>* places,
                                           const DeviceReach* reach) = 0;
  Result<MatchResult> MatchInPlace(const MatchRequest& request, size_t max_places,
                                   std::vector<PlacedPart>* places) {
    return MatchInPlace(request, max_places, places, nullptr);
  }
  // Appends the parts of leased blocks, in order; of blocks that a source located, one entry each.
  // Blocks on disk are asked for once more. Does not wait.
  virtual Status Locate(const LocateRequest& request, std::vector<PlacedPart>* places) = 0;
  // Looks at the bytes of a leased block itself, since a reader says that they fail their hash.
  // A bad block is removed, and counted as corrupt and as a miss. `reads_devices`: the reader may
  // have seen the copy in the device tier. That copy is taken for bad if the one in host is sound,
  // and is verified in the background if there is none in host.
  virtual Status Report(SessionId session, LeaseId lease, uint32_t block, bool reads_devices) = 0;
  Status Report(SessionId session, LeaseId lease, uint32_t block) {
    return Report(session, lease, block, false);
  }
  // Per key the fastest tier that holds the complete block. REQUIRES: found.size() == keys.size().
  virtual Status ExistsInPlace(const Fingerprint& fingerprint, std::span<const BlockKey> keys,
                               std::span<std::optional<TierKind>> found) = 0;
  // As CacheEngine::Reserve, where the tenant's writers can write. RESOURCE_EXHAUSTED: there is no
  // room for that, but there may be for a Reserve. The memory never held a byte of another tenant.
  // It may hold bytes of the tenant's other blocks, in any of its namespaces, without their header:
  // a commit is refused until somebody has written one, and the node sees no more of what was
  // written.
  virtual Result<std::vector<Result<PlacedReservation>>> ReserveInPlace(
      SessionId session, const Fingerprint& fingerprint,
      std::span<const ReservePartRequest> parts) = 0;
  // For the statistics, and the pace of the session's tenant: bytes whose places were told to its
  // reader, by the tier their match found them in, and bytes committed in place.
  virtual void CountInPlace(SessionId session, const ByTier<uint64_t>& read, uint64_t written) = 0;
};

}  // namespace cairn::cache
