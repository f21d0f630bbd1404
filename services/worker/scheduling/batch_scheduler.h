#pragma once
// Mixes chunks of prompts and decodes of many requests in one step, within a budget of time.
//
// Iteration-level batches are those of ORCA (Yu et al., OSDI 2022), and chunks of prompts in the
// same steps as decodes are those of Sarathi-Serve (Agrawal et al., OSDI 2024). The budget is time
// and not tokens: one block of a prompt takes as long as many decode steps on a CPU, and less than
// one on a GPU.
//
//   all decode in each step       a step of n decodes takes D = step + decode * n seconds
//   prompts get in the long run   D * (1 - share) / share seconds for each such step: their credit
//   a step computes of prompts    whole blocks, as many as the credit pays for, at least one. A
//                                 block that costs more than the credit waits until the credit is
//                                 paid back: then steps that only decode come between two blocks
//
// So a decode never waits longer than D / share plus the prefill of one block.

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/tenants/tenant_accounts.h"
#include "services/worker/scheduling/prompt_order.h"
#include "services/worker/scheduling/scheduler.h"
#include "services/worker/scheduling/step_rates.h"

namespace cairn::worker {

// Used by the engine's thread, as every scheduler.
class BatchScheduler final : public Scheduler {
 public:
  struct Options {
    size_t max_running = 1;
    int64_t block_tokens = 64;
    // The share of the time that decodes get while prompts wait: more than 0, less than 1.
    double decode_share = 0.5;
  };

  // `accounts` must outlive it.
  BatchScheduler(const Options& options, const TenantAccounts& accounts);

  size_t max_running() const override { return options_.max_running; }
  // Requests that end come first, then those that decode, oldest first, then prompts in the order
  // of PromptOrder.
  StepPlan Next(std::span<const Candidate> running, TimePoint now) override;
  void Computed(const PassShape& pass, double seconds) override;
  MeasuredRates rates() const override;

 private:
  int64_t PrefillBudget(int64_t decodes, int64_t position) const;

  const Options options_;
  const PromptOrder order_;
  StepRates rates_;
  double credit_ = 0;          // Seconds that prompts may take before decodes step alone.
  int64_t mixed_steps_ = 0;    // Since decodes last stepped alone.
  bool prompts_wait_ = false;  // In the step under way.
  // While prompts waited, decayed: what rates().drain_tokens_per_second is made of.
  double drained_tokens_ = 0, drained_seconds_ = 0;
};

}  // namespace cairn::worker
