#pragma once
// Which worker gets a request. A policy sees numbers and answers with a number, so that the same
// code runs in a router and in a model (benchmarks/model).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::router {

// A router's view of one worker, for one request. All numbers are finite and not negative.
struct WorkerView {
  // Seconds of the prompts before this one: those that the worker reported, and those that this
  // router sent there since.
  double queue_seconds = 0;
  double fetch_seconds = 0;    // Until what the worker need not compute of the prompt is there.
  double prefill_seconds = 0;  // Seconds to compute the rest of the prompt.
  double decode_seconds = 0;   // The expected cost of the answer's tokens for others.
  // Prefill of what another worker holds of the prompt and this one does not: it would be stored a
  // second time, whether fetched or computed again, and other blocks leave for it.
  double copied_seconds = 0;
  double requests = 0;              // Requests that wait or run there, as far as is known.
  uint32_t held_tokens = 0;         // Tokens of the prompt that the worker need not compute.
  bool first_in_first_out = false;  // WorkerLoad's.

  double work_seconds() const { return prefill_seconds + decode_seconds; }
};

// One decision.
struct Situation {
  std::span<const WorkerView> workers;  // The usable ones, at least one.
  uint32_t prompt_tokens = 0;
  double arrivals_per_second = 0;  // At this router, over the last minute.
  double use = 0;                  // The share of the last minute in which workers had prompts to
                                   // compute: 0 to 1.
};

// The cost of one worker, in seconds: max(.3 queue, fetch) + (work + .5 copied) x (1 + delayed).
// The whole queue counts, not .3 of it, where the worker computes first in first out.
//
// The seconds until the answer begins, and those that the request adds to others that come behind
// it. Their number is delayed = min(50, arrivals / workers x (queue + work) / (1 - use)), use at
// most .97: those that arrive while this request is there, and those that find them waiting. With
// delayed = 0 this would be the least time to first token, which computes prefixes again wherever
// there is room until there is none.
struct Cost {
  double delayed_requests = 0;
  double seconds = 0;
};
Cost CostOf(const WorkerView& worker, const Situation& situation);

// The source of random numbers for ties.
using Random = std::mt19937_64;

// One thread at a time.
class Policy {
 public:
  virtual ~Policy() = default;
  // An index into the workers.
  virtual size_t Pick(const Situation& situation, Random& random) = 0;
  // As in settings.
  virtual std::string_view name() const = 0;
};

// "round_robin": one worker after the other.
// "least_load":  fewest requests that wait or run, ties at random.
// "affinity":    most tokens held if that is a quarter of the prompt, then the least queue, ties at
//                random.
// "cost":        least CostOf, ties at random.
// INVALID_ARGUMENT names the policies that there are.
Result<std::unique_ptr<Policy>> MakePolicy(std::string_view name);
// All names, the default first.
std::vector<std::string> PolicyNames();

// One of the indices with the least value, at random. `values` is not empty. Values that differ by
// less than a billionth are equal.
size_t LeastAtRandom(std::span<const double> values, Random& random);

}  // namespace cairn::router
