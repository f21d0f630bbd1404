#include "services/cache/cluster/members/held_blocks.h"

namespace cairn::cache {

PeerMatch ToPeerMatch(const MatchResult& result) {
  PeerMatch match{.blocks = result.matched_blocks,
                  .bytes = result.bytes,
                  .seconds = result.estimated_fetch_seconds};
  for (const TierRun& run : result.tiers) {
    if (!run.tier || *run.tier == TierKind::kDisk) continue;
    match.memory_blocks += run.blocks;
    match.memory_bytes += run.bytes;
  }
  return match;
}

Result<SessionId> HeldBlocks::Session() {
  MutexLock lock(mu_);
  if (!session_) {
    CAIRN_ASSIGN_OR_RETURN(session_, engine_.OpenSession("locate"));
  }
  return *session_;
}

Result<PeerMatch> HeldBlocks::Match(const Digest& fingerprint, std::span<const BlockKey> keys) {
  CAIRN_ASSIGN_OR_RETURN(const SessionId session, Session());
  CAIRN_ASSIGN_OR_RETURN(const MatchResult result, engine_.Match({.session = session,
                                                                  .fingerprint = fingerprint,
                                                                  .keys = keys,
                                                                  .lease = false,
                                                                  .trace = ""}));
  return ToPeerMatch(result);
}

}  // namespace cairn::cache
