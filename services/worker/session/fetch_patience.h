#pragma once
// How long a fetch is waited for.

#include <algorithm>
#include <optional>

#include "cairn/common/clock.h"

namespace cairn::worker {

struct FetchDeadlines {
  TimePoint start;
  Duration stall;  // How long nothing new may arrive while it is waited for.
  Duration limit;  // How long it may take in all.
};

// Not thread-safe.
class FetchPatience {
 public:
  explicit FetchPatience(const FetchDeadlines& deadlines)
      : deadlines_(deadlines), activity_(deadlines.start) {}

  // A piece has come, or a call to the node has begun.
  void Heard(TimePoint now) { activity_ = now; }
  // It is asked for without waiting, from the first call on.
  void Polled(TimePoint now) {
    if (!first_poll_) first_poll_ = now;
  }

  // When it is given up if nothing arrives: by a wait that began at `since`, and by polls.
  TimePoint Deadline(TimePoint since) const {
    return std::min(std::max(activity_, since) + deadlines_.stall,
                    deadlines_.start + deadlines_.limit);
  }
  TimePoint PollDeadline() const { return Deadline(first_poll_.value_or(deadlines_.start)); }

 private:
  const FetchDeadlines deadlines_;
  TimePoint activity_;
  std::optional<TimePoint> first_poll_;
};

}  // namespace cairn::worker
