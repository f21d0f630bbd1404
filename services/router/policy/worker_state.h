#pragma once
// The state of one worker as a router knows it: its last report, and the requests that were sent
// there since.

#include <cstdint>
#include <deque>
#include <optional>

#include "cairn/common/clock.h"
#include "services/router/policy/pending_prompts.h"
#include "services/router/policy/usage_window.h"
#include "services/router/policy/worker_load.h"

namespace cairn::router {

// Seconds of work that wait, at a worker that does a second of work in a second. So an estimate
// without reports is neither stuck nor lost. Times do not go back. Not thread-safe.
class Backlog {
 public:
  void Set(double seconds, TimePoint now);
  void Add(double seconds, TimePoint now) { Set(At(now) + seconds, now); }
  double At(TimePoint now) const;

 private:
  double seconds_ = 0;
  TimePoint as_of_{};
};

// Not thread-safe.
class WorkerState {
 public:
  struct Options {
    Duration stale_after = std::chrono::seconds(3);
    Duration report_delay = std::chrono::milliseconds(10);
    double prefill_tokens_per_second = 2'000;  // Until the worker reports its own.
  };
  // The measured speed of fetches, by where the tokens are.
  struct FetchRates {
    double memory = 0, disk = 0, elsewhere = 0;  // Tokens per second.
  };
  WorkerState(const Options& options, const FetchRates& rates, uint64_t generation)
      : options_(options), rates_(rates), generation_(generation) {}

  void Report(const WorkerLoad& load, TimePoint now);
  // A request with this much prefill goes there. `followed`: Ended will be called.
  void Sent(double prefill_seconds, int32_t priority, bool followed, TimePoint now);
  void Ended(TimePoint now);

  // Seconds until all prefill that is there is done.
  double QueueSeconds(TimePoint now) const;
  // The same without prompts of lower priorities that wait: a request of this priority overtakes
  // them.
  double WaitSeconds(int32_t priority, TimePoint now) const;
  // Requests that wait or run.
  double Requests(TimePoint now) const;
  // Requests that get tokens, as the worker reported. 0: not known.
  double RunningDecodes(TimePoint now) const;
  // The last report is not stale.
  bool Fresh(TimePoint now) const;
  // Seconds to compute the tokens [position, position + tokens) of a prompt.
  double PrefillSeconds(uint32_t position, uint32_t tokens) const;
  // The time that one more decode adds to a step.
  double decode_seconds() const { return load_.decode_seconds; }
  bool first_in_first_out() const { return load_.first_in_first_out; }
  // The share of the last minute in which prompts waited or ran.
  double Use(TimePoint now) const { return use_.Share(now); }

  const FetchRates& fetch_rates() const { return rates_; }
  FetchRates* mutable_fetch_rates() { return &rates_; }
  std::optional<TimePoint> reported_at() const { return reported_at_; }
  uint64_t generation() const { return generation_; }
  uint64_t picks() const { return picks_; }
  uint64_t followed() const { return followed_; }
  // Prompts of requests whose end is followed.
  const PendingPrompts& pending() const { return pending_; }
  PendingPrompts* mutable_pending() { return &pending_; }

 private:
  // Requests that reports may not show yet.
  static constexpr size_t kMostSent = 4096;
  struct Sending {
    TimePoint at;
    double seconds = 0;
    int32_t priority = 0;
  };

  const Options options_;
  FetchRates rates_;
  const uint64_t generation_;
  WorkerLoad load_;  // With numbers that make sense.
  double reported_requests_ = 0;
  std::optional<TimePoint> reported_at_;
  Backlog backlog_;           // As reported, and what was sent since.
  Backlog own_;               // The requests that this router sent, for when there are no reports.
  std::deque<Sending> sent_;  // Oldest first, at most kMostSent.
  PendingPrompts pending_;
  UseWindow use_;
  uint64_t picks_ = 0;
  uint64_t followed_ = 0;
};

}  // namespace cairn::router
