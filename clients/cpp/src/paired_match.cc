#include "cairn/client/paired_match.h"

#include <algorithm>
#include <string>
#include <utility>

namespace cairn::client {

Result<PairedMatch> MatchBoth(CacheClient& client, const NamedBlocks& near, const NamedBlocks& far,
                              const MatchOptions& options) {
  if (near.keys.size() != far.keys.size()) {
    return InvalidArgument("field 'keys': got {} near and {} far ones, expected equally many",
                           near.keys.size(), far.keys.size());
  }
  PairedMatch match;
  CAIRN_ASSIGN_OR_RETURN(match.near, client.Match(near.fingerprint, near.keys, options));
  if (match.near.matched_blocks > 0) {
    // No more than the near form has would be of use.
    CAIRN_ASSIGN_OR_RETURN(
        match.far,
        client.Match(far.fingerprint, far.keys.first(match.near.matched_blocks), options));
  }
  match.blocks = std::min(match.near.matched_blocks, match.far.matched_blocks);
  match.miss_reason =
      match.blocks < match.near.matched_blocks ? match.far.miss_reason : match.near.miss_reason;
  if (match.blocks == 0) {
    match.near.lease.Release();
    match.far.lease.Release();
  }
  return match;
}

Status RenewBoth(CacheClient& client, const PairedMatch& match, Duration ttl,
                 const CallOptions& options) {
  for (const auto& [name, outcome] : {std::pair("near", &match.near), {"far", &match.far}}) {
    if (!outcome->lease.held()) {
      return Errorf(StatusCode::kNotFound, "the {} form has no lease", name);
    }
    const Status renewed = client.RenewLease(outcome->lease, ttl, options).status();
    if (!renewed.ok()) {
      return Status(renewed.code(),
                    fmt::format("the {} form: {}", name, std::string(renewed.message())));
    }
  }
  return OkStatus();
}

}  // namespace cairn::client
