#pragma once
// Whether calls to a member work, as this node sees it. Nobody else's opinion counts, and no lease
// has to end.

#include <algorithm>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"

namespace cairn::cache {

// After a broken connection, or three failures in a row, a member is skipped for half a second,
// then one call may try again; each failed trial doubles the pause, up to half a minute.
//
// Whoever sends wrong bytes three times within ten minutes is skipped for ten minutes, whatever
// else it answers, and also if its process starts again meanwhile. One wrong block may be a damaged
// bit; three are a member whose memory, or word, is worth nothing. Thread-safe.
class PeerHealth {
 public:
  static constexpr int kFailures = 3;
  static constexpr size_t kWrong = 3;
  static constexpr Duration kWrongWithin = std::chrono::minutes(10);
  static constexpr Duration kWrongPause = std::chrono::minutes(10);
  static constexpr Duration kFirstPause = std::chrono::milliseconds(500);
  static constexpr Duration kLongestPause = std::chrono::seconds(30);

  explicit PeerHealth(const Clock* clock, Duration wrong_pause = kWrongPause)
      : clock_(clock), wrong_pause_(wrong_pause) {}

  // Whether a call may be worth it now.
  bool Hopeful(const std::string& member) const {
    MutexLock lock(mu_);
    if (IsWrong(member)) return false;
    const auto it = states_.find(member);
    return it == states_.end() || it->second.failures < kFailures ||
           clock_->Now() >= it->second.until;
  }
  // Before a call. False: skip it. True lets one caller try a member whose pause has ended; others
  // skip it until that call has told its end, or for another pause.
  bool MayCall(const std::string& member) {
    MutexLock lock(mu_);
    if (IsWrong(member)) return false;
    const auto it = states_.find(member);
    if (it == states_.end() || it->second.failures < kFailures) return true;
    State& state = it->second;
    if (clock_->Now() < state.until) return false;
    state.until = clock_->Now() + state.pause;
    return true;
  }
  void Worked(const std::string& member) {
    MutexLock lock(mu_);
    states_.erase(member);
  }
  void Failed(const std::string& member, bool broken) {
    MutexLock lock(mu_);
    State& state = states_[member];
    const bool skipped_before = state.failures >= kFailures;
    state.failures = broken ? kFailures : std::min(state.failures + 1, kFailures);
    if (state.failures < kFailures) return;
    state.pause = skipped_before ? std::min(state.pause * 2, kLongestPause) : kFirstPause;
    state.until = clock_->Now() + state.pause;
  }
  // The member sent bytes that are not those of the block. True: it is skipped from now on.
  bool SentWrong(const std::string& member) {
    MutexLock lock(mu_);
    const TimePoint now = clock_->Now();
    Wrong& wrong = wrong_[member];
    wrong.when.erase(std::remove_if(wrong.when.begin(), wrong.when.end(),
                                    [now](TimePoint when) { return now - when >= kWrongWithin; }),
                     wrong.when.end());
    wrong.when.push_back(now);
    if (wrong.when.size() < kWrong) return false;
    wrong.when.clear();
    wrong.until = now + wrong_pause_;
    return true;
  }
  bool SkippedForWrong(const std::string& member) const {
    MutexLock lock(mu_);
    return IsWrong(member);
  }
  // Members that are skipped now because calls to them fail.
  size_t skipped() const {
    MutexLock lock(mu_);
    return static_cast<size_t>(std::count_if(states_.begin(), states_.end(), [](const auto& entry) {
      return entry.second.failures >= kFailures;
    }));
  }

 private:
  struct State {
    int failures = 0;
    Duration pause = kFirstPause;
    TimePoint until{};
  };
  struct Wrong {
    absl::InlinedVector<TimePoint, kWrong> when;  // Within kWrongWithin.
    TimePoint until = TimePoint::min();
  };
  bool IsWrong(const std::string& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto it = wrong_.find(member);
    return it != wrong_.end() && clock_->Now() < it->second.until;
  }

  const Clock* const clock_;
  const Duration wrong_pause_;
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, State> states_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, Wrong> wrong_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
