#pragma once
// A client's request for a prefix, in a call of its own (Match) or at the beginning of a Fetch.

#include <string_view>

#include "cairn/v1/cache.pb.h"
#include "services/cache/engine/cache_engine.h"
#include "services/cache/rpc/lookup_metrics.h"
#include "services/cache/rpc/namespaces.h"

namespace cairn::cache {

// Thread-safe.
class Lookups {
 public:
  // `engine` outlives it.
  Lookups(CacheEngine* engine, metrics::Registry* registry)
      : engine_(engine), specs_(engine), metrics_(registry) {}

  struct Question {
    SessionId session = 0;
    std::string_view fingerprint, keys;  // As on the wire.
    uint32_t lease_ttl_ms = 0;
    bool lease = true;
    double prefill_tokens_per_second = 0;
    std::string_view trace;
  };
  // INVALID_ARGUMENT naming the field; otherwise as CacheEngine::Match.
  Result<MatchResult> Match(const Question& question);

  NamespaceSpecs& specs() { return specs_; }

 private:
  CacheEngine* const engine_;
  NamespaceSpecs specs_;
  const LookupMetrics metrics_;
};

void ToProto(const MatchResult& result, v1::MatchResponse* out);

}  // namespace cairn::cache
