#pragma once
// A client's request for a prefix, in a call of its own (Match) or at the beginning of a Fetch.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cairn/v1/cache.pb.h"
#include "common/rpc/call.h"
#include "services/cache/serve/rpc/lookup_metrics.h"
#include "services/cache/store/engine/cache_engine.h"

namespace cairn::cache {

// Thread-safe.
class Lookups {
 public:
  // `engine` outlives it.
  Lookups(CacheEngine* engine, metrics::Registry* registry) : engine_(engine), metrics_(registry) {}

  struct Question {
    SessionId session = 0;
    std::string_view fingerprint, keys;  // As on the wire.
    uint32_t lease_ttl_ms = 0;
    bool lease = true;
    double prefill_tokens_per_second = 0;
    std::string_view trace;
    std::vector<std::string> holders = {};
    int next = 0;  // As on the wire.
    uint32_t wait_ms = 0, wait_blocks = 0;
    bool announce = false;
    const v1::JointQuestion* joint = nullptr;  // nullptr: a match without pools.
  };
  // Calls `done(Result<MatchResult>, bool waited)` once: in this call, or, if a source is asked, on
  // another thread (waited) after a few milliseconds. `call`: on whose behalf; `done` ends it.
  // INVALID_ARGUMENT names the field; the other errors are those of CacheEngine::Match and
  // FurtherMatch::Find.
  template <typename Done>
  void Match(const rpc::Call& call, const Question& question, Done&& done) {
    Asked asked;
    Result<MatchResult> result = MatchHere(question, &asked);
    if (!result.ok() || result->further == nullptr) {
      if (result.ok()) Count(asked, *result);
      return done(std::move(result), /*waited=*/false);
    }
    const std::shared_ptr<FurtherMatch> further = std::move(result->further);
    further->Find(call.Deadline(kLimit),
                  [this, asked, done = std::forward<Done>(done)](Result<MatchResult> found) {
                    if (found.ok()) Count(asked, *found);
                    done(std::move(found), /*waited=*/true);
                  });
  }

 private:
  // Limit for callers without a deadline.
  static constexpr Duration kLimit = std::chrono::minutes(1);
  struct Asked {
    size_t keys = 0;
    uint32_t block_tokens = 0;
    bool counts = true;  // As a lookup: not if its caller only waits, or announces.
    JointQuestion joint = {};
  };
  // The match of the tiers alone.
  Result<MatchResult> MatchHere(const Question& question, Asked* asked);
  void Count(const Asked& asked, const MatchResult& result) const {
    if (!asked.counts) return;
    if (asked.joint.asked()) {
      metrics_.CountJoint(result, asked.joint, uint64_t{asked.keys} * asked.block_tokens);
    } else {
      metrics_.Count(result, asked.keys, asked.block_tokens);
    }
  }

  CacheEngine* const engine_;
  const LookupMetrics metrics_;
};

void ToProto(const MatchResult& result, v1::MatchResponse* out);

}  // namespace cairn::cache
