#pragma once
// Two recipes of the same blocks, leased together: for a reader that keeps one form near, such as a
// copy in few bits, and reads rows of the other. A published recipe is a namespace of its own
// (docs/operate/recipes.md), so each form has keys and a lease of its own, and neither outlives
// what a reader sees: a lease that ends, or blocks that are dropped or bumped, end fetches with its
// name.

#include <cstdint>
#include <span>

#include "cairn/client/cache_client.h"

namespace cairn::client {

// The blocks of a prompt in one recipe.
struct NamedBlocks {
  Digest fingerprint = {};
  std::span<const BlockKey> keys = {};
};

struct PairedMatch {
  // Both forms have this many blocks, from the prompt's first. 0: there are no leases.
  uint32_t blocks = 0;
  // Why the next block is missing, in the form that has fewer. kNone: all blocks matched.
  MissReason miss_reason = MissReason::kNone;
  // matched_blocks may be more than `blocks`: the leases are on what was found.
  MatchOutcome near = {};
  MatchOutcome far = {};
};

// Matches both forms, each within options.deadline. INVALID_ARGUMENT: they do not have equally many
// keys. Other errors: those of CacheClient::Match; then there is no lease.
Result<PairedMatch> MatchBoth(CacheClient& client, const NamedBlocks& near, const NamedBlocks& far,
                              const MatchOptions& options);

// Extends both leases. NOT_FOUND: one has ended, which the text names.
Status RenewBoth(CacheClient& client, const PairedMatch& match, Duration ttl,
                 const CallOptions& options);

}  // namespace cairn::client
