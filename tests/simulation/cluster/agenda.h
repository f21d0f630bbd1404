#pragma once
// The agenda of events without stacks of their own, for simulations of many processes.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"

namespace cairn::testing {

// Events of the same time run in the order in which they were added. Not thread-safe.
class Agenda {
 public:
  TimePoint Now() const { return clock_.Now(); }
  const Clock& clock() const { return clock_; }
  void At(TimePoint when, std::function<void()> task) {
    entries_.push_back({std::max(when, Now()), ++added_, std::move(task)});
    std::push_heap(entries_.begin(), entries_.end());
  }
  // Runs what is due until then, and moves the clock there.
  void RunUntil(TimePoint end) {
    while (!entries_.empty() && entries_.front().when <= end) {
      std::pop_heap(entries_.begin(), entries_.end());
      const Entry entry = std::move(entries_.back());
      entries_.pop_back();
      clock_.Advance(entry.when - Now());
      ++ran_;
      entry.task();
    }
    if (end > Now()) clock_.Advance(end - Now());
  }
  uint64_t ran() const { return ran_; }

 private:
  struct Entry {
    TimePoint when;
    uint64_t number;
    std::function<void()> task;
    // The heap has the earliest one in front.
    bool operator<(const Entry& other) const {
      return std::pair(when, number) > std::pair(other.when, other.number);
    }
  };
  FakeClock clock_;
  std::vector<Entry> entries_;
  uint64_t added_ = 0, ran_ = 0;
};

// The steady clock of one process: it began somewhere, and is a little too fast or too slow.
class ProcessClock final : public Clock {
 public:
  ProcessClock(const Agenda* agenda, Duration offset, double rate)
      : agenda_(*agenda), world_(agenda->Now()), local_(world_ + offset), rate_(rate) {}
  TimePoint Now() const override {
    return local_ + std::chrono::duration_cast<Duration>((agenda_.Now() - world_) * rate_);
  }
  // When it will show `local`, if its rate stays.
  TimePoint ToWorld(TimePoint local) const {
    constexpr Duration kFar = std::chrono::hours(10'000);
    const Duration left = std::min(kFar, local - Now());
    if (left <= Duration(0)) return agenda_.Now();
    return agenda_.Now() + std::chrono::duration_cast<Duration>(left / rate_) + Duration(1);
  }
  void SetRate(double rate) {
    local_ = Now();
    world_ = rate_since_ = agenda_.Now();
    rate_ = rate;
  }
  // A time of the world: until then it went at another rate. Timers that began before come late or
  // early.
  TimePoint rate_since() const { return rate_since_; }
  void JumpTo(TimePoint local) {
    local_ = std::max(local, Now());
    world_ = agenda_.Now();
  }
  // Nothing may wait here: what happens is an event, and would have to happen meanwhile.
  void Wait(CondVar& /*changed*/, Mutex& /*mu*/, TimePoint /*deadline*/,
            const std::function<bool()>& /*ready*/) const override {
    CAIRN_CHECK(false);
  }

 private:
  const Agenda& agenda_;
  TimePoint world_, local_;  // A moment, on both clocks.
  double rate_;
  TimePoint rate_since_{};
};

}  // namespace cairn::testing
