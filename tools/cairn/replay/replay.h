#pragma once
// A trace against one node's placement: the real index and the real policies, without bytes. Blocks
// count as whole ones, so a tier holds capacity / block_tokens of them.

#include <cstdint>
#include <functional>

#include "services/cache/store/placement/policies.h"
#include "tools/cairn/replay/trace.h"

namespace cairn::cli::replay {

struct ReplayOptions {
  cache::EvictionKind policy = cache::EvictionKind::kLru;
  uint64_t capacity_tokens = 0;  // The capacity of the host tier.
  // The size of a disk tier, which gets a copy of every block, above nine tenths of those used
  // twice. 0: none.
  uint64_t disk_tokens = 0;
};

struct ReplayResult {
  uint64_t requests = 0;
  uint64_t blocks = 0, hit_blocks = 0;
  uint64_t tokens = 0, hit_tokens = 0;
  // Prefill time of what was hit, at 8,000 tokens per second, slower by context / 60,000.
  double seconds_saved = 0;
  uint64_t evictions = 0;  // Evictions of all tiers.
  uint64_t disk_writes = 0;
  uint64_t refused_blocks = 0;  // By real nodes, which had no room. Only ReplayOnNodes counts them.
  double replay_seconds = 0;    // The time that the replay itself took.

  // One more request, whose first `matched` blocks were hit.
  void Count(const Trace& trace, const TraceRequest& request, uint64_t matched);
  double HitRateBlocks() const { return Ratio(hit_blocks, blocks); }
  double HitRateTokens() const { return Ratio(hit_tokens, tokens); }

 private:
  static double Ratio(uint64_t part, uint64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }
};

// Told now and then how many requests are done.
using ReplayProgress = std::function<void(uint64_t requests)>;

ReplayResult Replay(const Trace& trace, const ReplayOptions& options,
                    const ReplayProgress& progress = {});

// The bound that no policy can exceed: it knows the future, and drops the block whose next use is
// the farthest, the deepest of those that are equal (Belady, IBM Systems Journal 5(2), 1966). Host
// tier only.
ReplayResult ReplayOptimum(const Trace& trace, uint64_t capacity_tokens);

// Seconds to prefill tokens [0, tokens) of a prompt.
double PrefillSeconds(double tokens);

}  // namespace cairn::cli::replay
