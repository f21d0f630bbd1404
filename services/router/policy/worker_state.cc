#include "services/router/policy/worker_state.h"

#include <algorithm>
#include <cmath>

namespace cairn::router {
namespace {

constexpr double kLongestQueue = 3600;  // Seconds. More than that is as bad.
constexpr double kFastest = 1e8;        // Tokens per second.
constexpr double kSlowest = 1e-2;
// Between a decision and the moment when the request counts in a report of this router's own.
constexpr Duration kOwnDelay = std::chrono::milliseconds(1);

// `value` if it is a number that makes sense, otherwise the nearest one; NaN is 0.
double Between(double least, double value, double most) {
  return std::isnan(value) ? least : std::clamp(value, least, most);
}

// 0: not known.
double Speed(double value) {
  if (std::isnan(value) || value <= 0) return 0;
  return std::clamp(value, kSlowest, kFastest);
}

}  // namespace

void Backlog::Set(double seconds, TimePoint now) {
  seconds_ = Between(0, seconds, kLongestQueue);
  as_of_ = now;
}

double Backlog::At(TimePoint now) const {
  return std::max(0.0, seconds_ - std::max(0.0, Seconds(now - as_of_)));
}

void WorkerState::Report(const WorkerLoad& load, TimePoint now) {
  load_ = load;
  load_.prefill_seconds = Between(0, load.prefill_seconds, kLongestQueue);
  load_.prefill_tokens_per_second = Speed(load.prefill_tokens_per_second);
  load_.drain_tokens_per_second = Speed(load.drain_tokens_per_second);
  load_.pair_seconds = Between(0, load.pair_seconds, 1);
  load_.step_seconds = Between(0, load.step_seconds, 1000);
  load_.decode_seconds = Between(0, load.decode_seconds, 1000);
  reported_requests_ = static_cast<double>(load.running_prompts) +
                       static_cast<double>(load.running_decodes) + static_cast<double>(load.parked);
  for (const WorkerLoad::Queued& queued : load.queued) reported_requests_ += queued.requests;
  const Duration delay =
      load.of_this_router ? std::min(kOwnDelay, options_.report_delay) : options_.report_delay;
  while (!sent_.empty() && sent_.front().at < now - delay) sent_.pop_front();
  double seconds = load_.prefill_seconds;
  for (const Sending& sending : sent_) seconds += sending.seconds;
  backlog_.Set(seconds, now);
  use_.Sample(load_.prefill_seconds > 0, now);
  reported_at_ = now;
}

void WorkerState::Sent(double prefill_seconds, int32_t priority, bool followed, TimePoint now) {
  const double seconds = Between(0, prefill_seconds, kLongestQueue);
  backlog_.Add(seconds, now);
  own_.Add(seconds, now);
  sent_.push_back({now, seconds, priority});
  if (sent_.size() > kMostSent) sent_.pop_front();
  ++picks_;
  if (followed) ++followed_;
}

void WorkerState::Ended(TimePoint now) {
  if (followed_ > 0) --followed_;
  // Estimates of requests that are over are no queue: until the next report they would send a
  // conversation away from the engine that holds it.
  if (followed_ == 0 && load_.of_this_router) backlog_.Set(0, now);
}

bool WorkerState::Fresh(TimePoint now) const {
  return reported_at_ && now - *reported_at_ <= options_.stale_after;
}

double WorkerState::QueueSeconds(TimePoint now) const {
  return Fresh(now) ? backlog_.At(now) : own_.At(now);
}

double WorkerState::WaitSeconds(int32_t priority, TimePoint now) const {
  const double queue = QueueSeconds(now);
  if (!Fresh(now)) return queue;
  double behind = 0;
  double tokens = 0;
  for (const WorkerLoad::Queued& queued : load_.queued) {
    if (queued.priority < priority) tokens += static_cast<double>(queued.prefill_tokens);
  }
  if (tokens > 0) {
    const double speed = load_.drain_tokens_per_second > 0     ? load_.drain_tokens_per_second
                         : load_.prefill_tokens_per_second > 0 ? load_.prefill_tokens_per_second
                                                               : options_.prefill_tokens_per_second;
    behind += tokens / speed;
  }
  for (const Sending& sending : sent_) {
    if (sending.priority < priority) behind += sending.seconds;
  }
  return std::max(0.0, queue - behind);
}

double WorkerState::Requests(TimePoint now) const {
  if (!Fresh(now)) return static_cast<double>(followed_);
  return reported_requests_ + static_cast<double>(sent_.size());
}

double WorkerState::RunningDecodes(TimePoint now) const {
  return Fresh(now) ? load_.running_decodes : 0;
}

double WorkerState::PrefillSeconds(uint32_t position, uint32_t tokens) const {
  const double speed = load_.prefill_tokens_per_second > 0 ? load_.prefill_tokens_per_second
                                                           : options_.prefill_tokens_per_second;
  const double count = tokens;
  // A lie about pairs does not make the rest free.
  const double token =
      std::max(0.1 / speed, 1 / speed - load_.pair_seconds * WorkerLoad::kQuotedPosition);
  const double seconds =
      count * token + load_.pair_seconds * count * (static_cast<double>(position) + count / 2);
  return std::min(seconds, kLongestQueue);
}

}  // namespace cairn::router
