#include "services/router/policy/pairing.h"

#include <algorithm>
#include <cmath>

namespace cairn::router {
namespace {

// No worker and no request is worse off than that: lies must not make every choice look alike.
constexpr double kMostSeconds = 1e6;

double Sane(double value) {
  return std::isfinite(value) && value > 0 ? std::min(value, kMostSeconds) : 0;
}
double SpeedOr(double speed, double unknown) {
  return std::isfinite(speed) && speed > 0 ? speed : unknown;
}

}  // namespace

PairingAnswer Pairing::Decide(const PairingQuestion& question) const {
  PairingAnswer answer;
  const double block = std::max<uint32_t>(1, question.block_tokens);
  const double all = question.compute_tokens;
  // The worker that answers computes the last token and what follows the last full block.
  const double full = all > 0 ? std::floor((all - 1) / block) * block : 0;
  const double rest = all - full;
  const auto speed = [&](const PairingLoad& load) {
    return SpeedOr(load.prefill_tokens_per_second, options_.prefill_tokens_per_second);
  };
  const double link = SpeedOr(question.link_tokens_per_second, options_.link_tokens_per_second);
  const double delayed_there = 1 + Sane(question.decode.running_decodes);
  const double delayed_before = 1 + Sane(question.prefill.running_decodes);
  const double queue_there = Sane(question.decode.prefill_seconds);
  answer.together_seconds = queue_there + all / speed(question.decode) * delayed_there;

  // The prompt is computed and sent at the same time; what was computed last is sent after that.
  const double compute = full / speed(question.prefill);
  const double last = std::min(full, options_.piece_blocks * block);
  const double sent = std::max(compute, full / link) + last / link;
  const double extra = (delayed_before - 1) * compute;
  // While it waits, the other worker goes through its own queue.
  const double there = std::max(Sane(question.prefill.prefill_seconds) + sent, queue_there);
  answer.apart_seconds = there + extra + rest / speed(question.decode) * delayed_there;
  answer.handed_tokens = static_cast<uint32_t>(full);
  answer.apart = full > 0 && answer.apart_seconds < options_.margin * answer.together_seconds;
  return answer;
}

}  // namespace cairn::router
