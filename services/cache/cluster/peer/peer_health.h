#pragma once
// Whether calls to a member work, as this node sees it. Nobody else's opinion counts, and no lease
// has to end.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"

namespace cairn::cache {

// How long one call to a member may take, and what it says about the member if no answer comes by
// then. PeerHealth gives it before the call, and takes it back when the call has ended.
struct Patience {
  TimePoint deadline{};  // The deadline of the call. The caller may stop waiting earlier.
  // The member has at least the time that this node gives to each member. False: the time is what
  // a caller has left, and a late answer says nothing about the member.
  bool counts = false;
  // The call may last longer than its caller waits. PeerHealth has at most one such call to each
  // member.
  bool outlives_caller = false;
  // It tries whether a member that is skipped works again.
  bool trial = false;
  std::string trace = {};  // The trace id of the call. Empty: none.
};

// After a broken connection, or three failures in a row, a member is skipped for half a second,
// then one call may try again; each failed trial doubles the pause, up to half a minute.
//
// Callers choose deadlines, and a short one must not look like a failure of the member. So late
// answers count only if the member had the time that this node has chosen. For callers that have
// less, one call at a time to each member goes on when its caller has left: so a member that hangs
// is noticed even if all callers are in a hurry, and what goes on is bounded.
//
// Whoever sends wrong bytes three times within ten minutes is skipped for ten minutes, whatever
// else it answers, and also if its process starts again meanwhile. One wrong block may be a damaged
// bit; three are a member whose memory, or word, is worth nothing.
//
// It remembers members only: ids that clients and other members make up leave nothing behind.
// Thread-safe.
class PeerHealth {
 public:
  static constexpr int kFailures = 3;
  static constexpr size_t kWrong = 3;
  static constexpr Duration kWrongWithin = std::chrono::minutes(10);
  static constexpr Duration kWrongPause = std::chrono::minutes(10);
  static constexpr Duration kFirstPause = std::chrono::milliseconds(500);
  static constexpr Duration kLongestPause = std::chrono::seconds(30);

  struct Options {
    // The least time that a member has for an answer before a late one is a failure.
    Duration answer_time = std::chrono::milliseconds(15);
    // For how long a member may be silent while it gives a block.
    Duration silence = std::chrono::milliseconds(250);
    Duration wrong_pause = kWrongPause;  // The pause of a member that sent wrong bytes.
  };
  // How a call ended, for the member.
  enum class Outcome : uint8_t {
    kWorked,
    kFailed,
    kBroken,  // The connection.
    kUnknown  // Nothing that the member did.
  };

  PeerHealth(Options options, const Clock* clock) : options_(options), clock_(*clock) {}

  // The present members. The state of others goes, except for wrong bytes that they sent lately: a
  // member does not wash its hands by leaving for a moment.
  void SetMembers(const std::vector<std::string>& ids) {
    MutexLock lock(mu_);
    absl::flat_hash_map<std::string, State> members;
    for (const std::string& id : ids) {
      const auto known = members_.find(id);
      members[id] = known == members_.end() ? State() : known->second;
    }
    members_ = std::move(members);
    const TimePoint now = clock_.Now();
    absl::erase_if(wrong_, [&](const auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      const Wrong& wrong = entry.second;
      const bool over =
          now >= wrong.until && (wrong.when.empty() || now - wrong.when.back() >= kWrongWithin);
      return over && !members_.contains(entry.first);
    });
  }
  bool IsMember(const std::string& id) const {
    MutexLock lock(mu_);
    return members_.contains(id);
  }

  // Whether a call may be worth it now.
  bool Hopeful(const std::string& member) const {
    MutexLock lock(mu_);
    return members_.contains(member) && !IsSkipped(member);
  }
  // It is a member, and not called at present.
  bool Skips(const std::string& member) const {
    MutexLock lock(mu_);
    return members_.contains(member) && IsSkipped(member);
  }

  // Before a question, whose caller waits until `caller_deadline`. nullopt: it is no member, or is
  // skipped. A caller that gets a Patience ends it. When a member's pause has ended, one caller
  // gets one; others skip the member until that call has ended, or for another pause.
  std::optional<Patience> MayAsk(const std::string& member, TimePoint caller_deadline) {
    MutexLock lock(mu_);
    State* const state = StateToCall(member);
    if (state == nullptr) return std::nullopt;
    const TimePoint now = clock_.Now();
    const TimePoint enough = now + options_.answer_time;
    Patience patience{.deadline = caller_deadline};
    if (caller_deadline >= enough) {
      patience.counts = true;
    } else if (!state->outlives) {
      state->outlives = true;
      patience = {.deadline = enough, .counts = true, .outlives_caller = true};
    }
    patience.trial = state->failures >= kFailures;
    // A trial that says nothing would keep the others from trying.
    if (patience.trial && !patience.counts) return std::nullopt;
    if (patience.trial) state->until = now + state->pause;
    return patience;
  }
  // The same before a read of a block. It ends at its caller's deadline, whose memory it writes
  // to: what counts then is whether the member was silent for too long.
  std::optional<Patience> MayRead(const std::string& member, TimePoint caller_deadline) {
    MutexLock lock(mu_);
    State* const state = StateToCall(member);
    if (state == nullptr) return std::nullopt;
    const TimePoint now = clock_.Now();
    const bool trial = state->failures >= kFailures;
    if (trial && caller_deadline < now + options_.silence) return std::nullopt;
    if (trial) state->until = now + state->pause;
    return Patience{.deadline = caller_deadline, .trial = trial};
  }
  // A call has ended. Each Patience once.
  void End(const std::string& member, const Patience& patience, Outcome outcome) {
    MutexLock lock(mu_);
    const auto it = members_.find(member);
    if (it == members_.end()) return;
    State& state = it->second;
    if (patience.outlives_caller) state.outlives = false;
    switch (outcome) {
      case Outcome::kWorked:
        state.failures = 0;
        state.pause = kFirstPause;
        break;
      case Outcome::kFailed:
      case Outcome::kBroken:
        Failed(state, patience.trial, outcome == Outcome::kBroken);
        break;
      case Outcome::kUnknown:
        break;
    }
  }
  // A member has come, or come back: what failed before says nothing.
  void Renew(const std::string& member) { End(member, {}, Outcome::kWorked); }

  // The member sent bytes that are not those of the block. True: it is skipped from now on.
  bool SentWrong(const std::string& member) {
    MutexLock lock(mu_);
    if (!members_.contains(member)) return false;
    const TimePoint now = clock_.Now();
    Wrong& wrong = wrong_[member];
    wrong.when.erase(std::remove_if(wrong.when.begin(), wrong.when.end(),
                                    [now](TimePoint when) { return now - when >= kWrongWithin; }),
                     wrong.when.end());
    wrong.when.push_back(now);
    if (wrong.when.size() < kWrong) return false;
    wrong.when.clear();
    wrong.until = now + options_.wrong_pause;
    return true;
  }
  bool SkippedForWrong(const std::string& member) const {
    MutexLock lock(mu_);
    return IsWrong(member);
  }
  // Members that are skipped now because calls to them fail.
  size_t skipped() const {
    MutexLock lock(mu_);
    return static_cast<size_t>(
        std::count_if(members_.begin(), members_.end(),
                      [](const auto& entry) { return entry.second.failures >= kFailures; }));
  }
  // Ids that it remembers: members, and those that left and sent wrong bytes lately.
  size_t entries() const {
    MutexLock lock(mu_);
    return members_.size() + static_cast<size_t>(std::count_if(
                                 wrong_.begin(), wrong_.end(),
                                 [this](const auto& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
                                   return !members_.contains(entry.first);
                                 }));
  }
  uint64_t bytes() const {
    MutexLock lock(mu_);
    uint64_t bytes = members_.capacity() * (sizeof(std::pair<std::string, State>) + 1) +
                     wrong_.capacity() * (sizeof(std::pair<std::string, Wrong>) + 1);
    for (const auto& [id, state] : members_) bytes += id.capacity();
    for (const auto& [id, wrong] : wrong_) bytes += id.capacity();
    return bytes;
  }

 private:
  struct State {
    int failures = 0;
    bool outlives = false;  // A call under way may outlive its caller.
    Duration pause = kFirstPause;
    TimePoint until{};
  };
  struct Wrong {
    absl::InlinedVector<TimePoint, kWrong> when;  // Within kWrongWithin.
    TimePoint until = TimePoint::min();
  };
  bool IsWrong(const std::string& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto it = wrong_.find(member);
    return it != wrong_.end() && clock_.Now() < it->second.until;
  }
  bool IsSkipped(const std::string& member) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (IsWrong(member)) return true;
    const auto it = members_.find(member);
    return it != members_.end() && it->second.failures >= kFailures &&
           clock_.Now() < it->second.until;
  }
  // nullptr: it is no member, or is skipped.
  State* StateToCall(const std::string& member) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto it = members_.find(member);
    return it == members_.end() || IsSkipped(member) ? nullptr : &it->second;
  }
  void Failed(State& state, bool trial, bool broken) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool skipped_before = state.failures >= kFailures;
    // Calls that were under way before say the same again: only trials make the pause longer.
    if (skipped_before && !trial) return;
    state.failures = broken ? kFailures : std::min(state.failures + 1, kFailures);
    if (state.failures < kFailures) return;
    state.pause = skipped_before ? std::min(state.pause * 2, kLongestPause) : kFirstPause;
    state.until = clock_.Now() + state.pause;
  }

  const Options options_;
  const Clock& clock_;
  mutable Mutex mu_;
  absl::flat_hash_map<std::string, State> members_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, Wrong> wrong_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
