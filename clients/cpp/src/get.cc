#include "cairn/client/cache_client.h"
#include "clients/cpp/src/checks.h"

namespace cairn::client {

Result<MatchOutcome> CacheClient::Get(const Digest& fingerprint, std::span<const BlockKey> keys,
                                      const LayerRange& layers, FetchSink& sink,
                                      const MatchOptions& match, const FetchOptions& fetch) {
  CAIRN_RETURN_IF_ERROR(CheckLayers(layers));
  MatchOptions leased = match;
  leased.lease = true;
  leased.lease_ttl = Duration(0);
  CAIRN_ASSIGN_OR_RETURN(MatchOutcome outcome, Match(fingerprint, keys, leased));
  if (outcome.matched_blocks == 0) return outcome;
  const Lease lease = std::move(outcome.lease);
  CAIRN_RETURN_IF_ERROR(
      Fetch(lease, {.layer_begin = layers.begin, .layer_end = layers.end}, sink, fetch));
  return outcome;
}

}  // namespace cairn::client
