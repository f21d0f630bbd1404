#pragma once
// Which of the running requests work in the next step, and how many prompt tokens it may compute.
// A policy: it sees numbers and answers with numbers.
//
//   RunLoop ── candidates ──► Scheduler::Next ──► StepPlan: who steps, and the prefill budget
//      └────── one forward pass over their chunks ──► Scheduler::Computed: how long it took

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "cairn/common/clock.h"

namespace cairn::worker {

// The facts that the order of prompts looks at.
struct PromptClaim {
  int32_t priority = 0;        // Greater goes first. 0: usual.
  uint32_t tenant = 0;         // An id of TenantAccounts.
  int64_t prefill_tokens = 0;  // Left to compute, as far as is known.
  TimePoint arrived{};         // When the request entered the queue.
};

struct StepPlan {
  // The requests that step, as indices into the candidates, each at most once. The first one is the
  // first to get rows of the step's forward pass. None: the step makes no progress.
  std::vector<size_t> order;
  // Most prompt tokens that the chunks of the step may have in all, in whole blocks. A prompt that
  // gets none still asks for its match, waits for its fetch, or ends.
  int64_t prefill_tokens = std::numeric_limits<int64_t>::max();
};

// The chunks of one forward pass.
struct PassShape {
  int64_t decodes = 0;           // Rows that decode, one for each request.
  int64_t prefill_tokens = 0;    // Rows of prompts.
  int64_t prefill_position = 0;  // Mean position of these rows in their prompts.
};

// Speeds as measured. 0: not known yet.
struct MeasuredRates {
  double prefill_tokens_per_second = 0;
  double step_seconds = 0;    // Time of a step that decodes, before the first request's share.
  double decode_seconds = 0;  // The time that one more decode adds to a step.
  // Prompt tokens computed in a second while prompts wait, the time of decodes included.
  double drain_tokens_per_second = 0;
  // The time that each token before it adds to a prompt token. prefill_tokens_per_second is with
  // 544 before.
  double pair_seconds = 0;
};

// Called from the engine's thread only.
class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // Requests that may run at the same time; the others wait in the queue. At least 1, and always
  // the same. With 1 a request overlaps its fetch with its computing (prompt_run.h).
  virtual size_t max_running() const = 0;

  struct Candidate {
    uint64_t id = 0;        // Ascending in the order in which requests left the queue.
    bool decoding = false;  // The prompt is computed: the next chunk has one token.
    // Cancelled, or past its deadline. Its next step ends it and computes nothing, and gives back
    // its pages and its lease.
    bool ending = false;
    bool can_park = true;  // It may give its pages to another one and come back.
    bool starved = false;  // There is no page for the token that it would compute next.
    int64_t position = 0;  // Tokens whose KV is there.
    PromptClaim claim;     // claim.prefill_tokens is 0 when it decodes.
  };
  // `running` is not empty, oldest first.
  virtual StepPlan Next(std::span<const Candidate> running, TimePoint now) = 0;

  // The forward pass of the step took `seconds`.
  virtual void Computed(const PassShape& /*pass*/, double /*seconds*/) {}
  virtual MeasuredRates rates() const { return {}; }
};

// One request at a time, in the order of their arrival.
class FifoScheduler final : public Scheduler {
 public:
  size_t max_running() const override { return 1; }
  StepPlan Next(std::span<const Candidate> /*running*/, TimePoint /*now*/) override {
    return {.order = {0}};
  }
};

}  // namespace cairn::worker
