#include "services/worker/session/fetch_pilot.h"

#include <algorithm>

namespace cairn::worker {
namespace {

// A fetch that should take no longer is asked for at once: it is over before a decision could
// change.
constexpr double kOneCall = 0.1;
// Otherwise a call brings what comes in so long, or in 20 round trips. Shorter ones would leave the
// wire idle between them too often, longer ones would bring blocks that are computed meanwhile.
constexpr double kCallSeconds = 0.05;
constexpr double kRoundTrips = 20;
// Turning back throws work away, on an estimate.
constexpr double kTurnBackGain = 0.85;
constexpr double kTurnBackSeconds = 0.02;

}  // namespace

FetchPilot::FetchPilot(const Setup& setup, const PrefillModel& prefill)
    : setup_(setup),
      prefill_(prefill),
      plan_(setup.blocks, setup.layers),
      live_(setup.rate.bytes_per_second) {}

void FetchPilot::Account(double now, uint64_t bytes) {
  // The way there and back is no sign of a slow fetch.
  const double from = std::max(last_, first_came_ ? 0 : last_ + UntilFirst(last_));
  const double seconds = asking_ ? std::max(0.0, now - from) : 0;
  live_.Add(computing_ ? seconds * setup_.share_beside : seconds, bytes);
  (computing_ ? sample_.seconds_beside : sample_.seconds_alone) += seconds;
  (computing_ ? sample_.bytes_beside : sample_.bytes_alone) += bytes;
  last_ = std::max(last_, now);
}

double FetchPilot::UntilFirst(double now) const {
  if (asking_ && first_came_) return 0;
  const double asked = asking_ ? asked_at_ : now;
  return std::max(0.0,
                  std::max(asked + setup_.rate.latency_seconds, setup_.node_first_seconds) - now);
}

Choice FetchPilot::Chosen(uint32_t front, double now) const {
  ChooserInput in;
  in.front = front;
  in.block_tokens = setup_.block_tokens;
  in.prompt_tokens = setup_.prompt_tokens;
  in.chunk_tokens = setup_.chunk_tokens;
  in.cell_bytes = setup_.cell_bytes;
  in.latency_seconds = UntilFirst(now);
  in.bytes_per_second = live_.bytes_per_second();
  in.share_beside = setup_.share_beside;
  in.slowdown = setup_.slowdown;
  in.node_first_seconds = std::max(0.0, setup_.node_first_seconds - now);
  in.node_last_seconds = std::max(0.0, setup_.node_last_seconds - now);
  in.overlap = setup_.overlap;
  // A fetch that has begun to compute the front goes on: a plan that changes with every small doubt
  // asks for cells in a bad order.
  if (ahead_) in.worth_it = 1;
  return Choose(plan_, prefill_, in);
}

uint32_t FetchPilot::Decide(uint32_t front, double now) {
  Account(now, 0);
  uint32_t target = front;
  if (setup_.choose) {
    target = Chosen(front, now).target;
    ahead_ = target > front;
    // The last block is always worth asking for: otherwise nobody would notice that the way to the
    // node has become fast again. It is not waited for.
    plan_.SetTarget(std::min(target, setup_.blocks - 1));
  }
  first_wanted_ = asking_ ? std::min(first_wanted_, target) : target;
  return target;
}

bool FetchPilot::ShouldTurnBack(uint32_t front, uint32_t layer, double now) {
  if (!setup_.choose) return false;
  Account(now, 0);
  const Choice choice = Chosen(front, now);
  if (choice.target <= front) return false;
  const double rest = prefill_.RangeSeconds(setup_.blocks * setup_.block_tokens,
                                            setup_.prompt_tokens, setup_.chunk_tokens);
  const double waiting = choice.fetch_seconds - rest * layer / setup_.layers;
  return choice.seconds < kTurnBackGain * waiting && waiting - choice.seconds > kTurnBackSeconds;
}

void FetchPilot::SetComputing(bool computing, double now) {
  Account(now, 0);
  computing_ = computing;
}

std::optional<FetchPlan::Range> FetchPilot::Next(double now) {
  Account(now, 0);
  uint64_t max_cells = plan_.blocks() * uint64_t{plan_.layers()};
  const double rate = live_.bytes_per_second();
  const double all = static_cast<double>(max_cells * setup_.cell_bytes) / rate;
  if (setup_.choose && setup_.split && (all > kOneCall || plan_.target() > 0)) {
    const double call = std::max(kCallSeconds, kRoundTrips * setup_.rate.latency_seconds);
    max_cells = static_cast<uint64_t>(rate * call / static_cast<double>(setup_.cell_bytes)) + 1;
  }
  const std::optional<FetchPlan::Range> range = plan_.Next(max_cells);
  asking_ = range.has_value();
  asked_at_ = now;
  first_came_ = false;
  return range;
}

void FetchPilot::Arrived(uint32_t block, uint32_t layer, double now) {
  if (!first_came_ && sample_.latency_seconds == 0) {
    sample_.latency_seconds = std::max(1e-6, now - asked_at_);
  }
  Account(now, setup_.cell_bytes);
  first_came_ = true;
  plan_.Arrived(block, layer);
}

void FetchPilot::Ended(double now) {
  Account(now, 0);
  asking_ = false;
}

FetchModel::Sample FetchPilot::Sample(TierKind tier) const {
  FetchModel::Sample sample = sample_;
  sample.tier = tier;
  return sample;
}

}  // namespace cairn::worker
