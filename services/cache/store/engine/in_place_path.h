#pragma once
// Reads and writes in place: see in_place.h. Thread-safe.

#include "services/cache/store/engine/in_place.h"
#include "services/cache/store/engine/read_path.h"
#include "services/cache/store/engine/write_path.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class InPlacePath {
 public:
  InPlacePath(NodeContext* context, SessionTable* sessions, Promoters* promoters, ReadPath* reads)
      : context_(*context), sessions_(*sessions), promoters_(*promoters), reads_(*reads) {}

  // As InPlaceEngine's.
  Result<MatchResult> Match(const MatchRequest& request, size_t max_places,
                            std::vector<PlacedPart>* places, const DeviceReach* reach);
  Status Locate(const LocateRequest& request, std::vector<PlacedPart>* places);
  Status Report(SessionId session, LeaseId lease, uint32_t block, bool reads_devices);
  Status Exists(const Fingerprint& fingerprint, std::span<const BlockKey> keys,
                std::span<std::optional<TierKind>> found);

 private:
  struct Elsewhere {
    MoveQueue::Wanted block;
    TierKind tier;
  };

  // Blocks [begin, end) of the lease, as far as `max_places` reach. Blocks that are neither in host
  // nor within reach are kPending; they go into `wanted`.
  Status Place(const Lease& lease, uint32_t begin, uint32_t end, size_t max_places,
               const DeviceReach* reach, std::vector<PlacedPart>* places,
               std::vector<Elsewhere>* wanted);
  // Copies the block from the device tier to host. On the way it is verified, and leaves the device
  // if it is bad.
  void VerifyOnDevice(const LeasePtr& lease, const BlockKey& key, uint32_t bytes);

  NodeContext& context_;
  SessionTable& sessions_;
  Promoters& promoters_;
  ReadPath& reads_;
};

}  // namespace cairn::cache
