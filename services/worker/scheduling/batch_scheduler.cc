#include "services/worker/scheduling/batch_scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "cairn/common/status.h"

namespace cairn::worker {
namespace {

// If each step had prompts in it, nobody would learn what decodes cost alone.
constexpr int64_t kMostMixedSteps = 64;
// The weight of a second of the past after another one, for the speed at which prompts go.
constexpr double kDrainForget = 0.9;

}  // namespace

BatchScheduler::BatchScheduler(const Options& options, const TenantAccounts& accounts)
    : options_(options), order_(accounts) {
  CAIRN_CHECK(options.max_running >= 1 && options.block_tokens >= 1);
  CAIRN_CHECK(options.decode_share > 0 && options.decode_share < 1);
}

StepPlan BatchScheduler::Next(std::span<const Candidate> running, TimePoint now) {
  StepPlan plan;
  std::vector<size_t> decodes;
  std::vector<std::pair<PromptRank, size_t>> prompts;
  const double speed = rates_.rates().prefill_tokens_per_second;
  for (size_t i = 0; i < running.size(); ++i) {
    const Candidate& one = running[i];
    if (one.ending) {
      plan.order.push_back(i);
    } else if (one.decoding) {
      decodes.push_back(i);
    } else {
      prompts.emplace_back(order_.Rank(one.claim, speed, now), i);
    }
  }
  std::ranges::sort(prompts);
  plan.order.insert(plan.order.end(), decodes.begin(), decodes.end());
  for (const auto& [rank, index] : prompts) plan.order.push_back(index);
  prompts_wait_ = !prompts.empty();
  if (prompts_wait_) {
    plan.prefill_tokens =
        PrefillBudget(std::ssize(decodes), running[prompts.front().second].position);
  }
  return plan;
}

int64_t BatchScheduler::PrefillBudget(int64_t decodes, int64_t position) const {
  if (decodes == 0) return std::numeric_limits<int64_t>::max();
  const bool measure = rates_.DecodeSeconds(decodes) <= 0 || mixed_steps_ >= kMostMixedSteps;
  if (measure || credit_ < 0) return 0;
  const double block = rates_.PrefillSeconds(position, options_.block_tokens);
  if (block <= 0) return options_.block_tokens;
  const double blocks = std::clamp(credit_ / block, 1.0, 1e6);
  return static_cast<int64_t>(blocks) * options_.block_tokens;
}

void BatchScheduler::Computed(const PassShape& pass, double seconds) {
  const double decoding = rates_.Observe(pass, seconds);
  if (prompts_wait_) {
    const double keep = seconds < 1 ? 1 - (1 - kDrainForget) * seconds : kDrainForget;
    drained_tokens_ = keep * drained_tokens_ + static_cast<double>(pass.prefill_tokens);
    drained_seconds_ = keep * drained_seconds_ + seconds;
  }
  if (pass.decodes == 0) {
    credit_ = 0;
    mixed_steps_ = 0;
    return;
  }
  mixed_steps_ = pass.prefill_tokens > 0 ? mixed_steps_ + 1 : 0;
  const double earned = decoding * (1 - options_.decode_share) / options_.decode_share;
  // Prompts save up no more than the rest of a block: a step must not become long.
  const double block = rates_.PrefillSeconds(pass.prefill_position, options_.block_tokens);
  credit_ = std::min(credit_ + earned - (seconds - decoding), earned + block);
}

MeasuredRates BatchScheduler::rates() const {
  MeasuredRates rates = rates_.rates();
  if (drained_seconds_ > 0) rates.drain_tokens_per_second = drained_tokens_ / drained_seconds_;
  return rates;
}

}  // namespace cairn::worker
