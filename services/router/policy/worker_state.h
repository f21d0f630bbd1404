#pragma once
// What a router knows of one worker: its last report, and what was sent there since.

#include <cstdint>
#include <deque>
#include <optional>

#include "cairn/common/clock.h"
#include "services/router/policy/usage_window.h"
#include "services/router/policy/worker_load.h"

namespace cairn::router {

// Seconds of work that wait, if the worker does one second's work in a second: so an estimate
// without reports is neither stuck nor lost. Not thread-safe.
class Backlog {
 public:
  void Set(double seconds, TimePoint now);
  void Add(double seconds, TimePoint now);
  double At(TimePoint now) const;

 private:
  double seconds_ = 0;
  TimePoint as_of_{};
};

// Not thread-safe.
class WorkerState {
 public:
  // Speeds that are used until the worker reports its own.
  struct Defaults {
    double prefill_tokens_per_second = 2'000;
    Duration stale_after{};
    Duration report_delay{};
  };
  WorkerState(const Defaults& defaults, uint64_t generation)
      : defaults_(defaults), generation_(generation) {}

  void Report(const WorkerLoad& load, TimePoint now);
  // A request with so much prefill goes there.
  void Sent(double prefill_seconds, int32_t priority, bool followed, TimePoint now);
  void Ended();  // One that was sent and followed.

  // Seconds of prefill before a request of this priority: nullopt for all that wait.
  double QueueSeconds(std::optional<int32_t> priority, TimePoint now) const;
  double Requests(TimePoint now) const;
  bool Fresh(TimePoint now) const;
  // The time to compute tokens [position, position + tokens) of a prompt.
  double PrefillSeconds(uint32_t position, uint32_t tokens) const;
  // What one more decode adds to a step.
  double decode_seconds() const { return load_.decode_seconds; }
  double Use(TimePoint now) const { return use_.Share(now); }
  std::optional<TimePoint> reported_at() const { return reported_at_; }
  uint64_t generation() const { return generation_; }
  uint64_t picks() const { return picks_; }
  uint64_t followed() const { return followed_; }

 private:
  struct Sending {
    TimePoint at;
    double seconds = 0;
    int32_t priority = 0;
  };
  void Forget(TimePoint before);

  const Defaults defaults_;
  const uint64_t generation_;
  WorkerLoad load_;  // Checked.
  std::optional<TimePoint> reported_at_;
  Backlog backlog_;           // As reported, and what was sent since.
  Backlog own_;               // What this router sent, for when there are no reports.
  std::deque<Sending> sent_;  // That reports may not show yet, oldest first. Bounded.
  UseWindow use_;
  uint64_t picks_ = 0;
  uint64_t followed_ = 0;
};

}  // namespace cairn::router
