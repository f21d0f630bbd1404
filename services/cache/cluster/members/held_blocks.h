#pragma once
// The part of a prompt that this node's own tiers hold, for callers that only ask.

#include <optional>
#include <span>

#include "common/concurrency/mutex.h"
#include "services/cache/cluster/peer/peer_links.h"
#include "services/cache/store/engine/cache_engine.h"

namespace cairn::cache {

// The blocks of the tiers, without those that a source may have.
PeerMatch ToPeerMatch(const MatchResult& result);

// Asks in a session of its own, which it opens when it is asked first, and which ends with the
// engine. Thread-safe.
class HeldBlocks {
 public:
  // `engine` outlives its calls.
  explicit HeldBlocks(CacheEngine* engine) : engine_(*engine) {}

  // Takes no lease and promotes nothing. Errors as CacheEngine::Match.
  Result<PeerMatch> Match(const Digest& fingerprint, std::span<const BlockKey> keys);

 private:
  Result<SessionId> Session();

  CacheEngine& engine_;
  Mutex mu_;
  std::optional<SessionId> session_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
