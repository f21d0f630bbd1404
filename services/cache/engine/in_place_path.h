#pragma once
// Reads and writes in place: see in_place.h. Thread-safe.

#include "services/cache/engine/in_place.h"
#include "services/cache/engine/read_path.h"
#include "services/cache/engine/write_path.h"
#include "services/cache/state/node_context.h"

namespace cairn::cache {

class InPlacePath {
 public:
  InPlacePath(NodeContext* context, SessionTable* sessions, Promoter* promoter, ReadPath* reads)
      : context_(*context), sessions_(*sessions), promoter_(*promoter), reads_(*reads) {}

  // As InPlaceEngine's.
  Result<MatchResult> Match(const MatchRequest& request, std::vector<PlacedPart>* places);
  Status Locate(const LocateRequest& request, std::vector<PlacedPart>* places);
  Status Report(SessionId session, LeaseId lease, uint32_t block);
  Status Exists(const Fingerprint& fingerprint, std::span<const BlockKey> keys,
                std::span<std::optional<TierKind>> found);

 private:
  // Blocks [begin, end) of the lease. Blocks on disk are kPending, their keys go into `wanted`.
  Status Place(const Lease& lease, uint32_t begin, uint32_t end, std::vector<PlacedPart>* places,
               std::vector<MoveQueue::Wanted>* wanted);

  NodeContext& context_;
  SessionTable& sessions_;
  Promoter& promoter_;
  ReadPath& reads_;
};

}  // namespace cairn::cache
