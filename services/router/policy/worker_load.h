#pragma once
// A worker's report of its load: the message LoadReport of proto/cairn/v1/worker.proto in plain
// C++.

#include <cstdint>
#include <vector>

namespace cairn::router {

// Nobody believes a report: numbers that are negative, not finite or beyond reason count as unknown
// or as the nearest number that makes sense. Speeds are measured by the worker; 0: not known.
struct WorkerLoad {
  double prefill_seconds = 0;    // Seconds until the prompts that wait or run are computed.
  uint32_t running_prompts = 0;  // Being matched, fetched or computed.
  uint32_t running_decodes = 0;
  uint32_t parked = 0;
  uint64_t kv_pages_free = 0;
  uint64_t kv_pages_total = 0;
  // While nothing else is computed, of tokens with kQuotedPosition before them.
  static constexpr double kQuotedPosition = 544;
  double prefill_tokens_per_second = 0;
  double drain_tokens_per_second = 0;  // Speed of prompts, while others decode as they do now.
  // The time that each token before it adds to the prefill of a prompt token.
  double pair_seconds = 0;
  double step_seconds = 0;    // Time of a step that decodes, before the first request's share.
  double decode_seconds = 0;  // The time that one more decode adds to a step.
  // It computes prompts in the order in which they came, as most engines of others do. False: those
  // with the least work first, as Cairn's workers do.
  bool first_in_first_out = false;
  // This router made the report, from what it sent: nothing is on its way to a worker that reports.
  bool of_this_router = false;
  struct Queued {
    int32_t priority = 0;
    uint32_t requests = 0;
    uint64_t prefill_tokens = 0;
  };
  std::vector<Queued> queued = {};
};

}  // namespace cairn::router
