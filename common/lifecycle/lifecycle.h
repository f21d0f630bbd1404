#pragma once
// How a process ends. Signals become a value that main waits for, and a gate knows when the last
// request is done.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/mutex.h"

namespace cairn {

// Makes SIGTERM and SIGINT return from Wait() instead of ending the process at once, and ignores
// SIGPIPE. main makes it first, before any thread exists, because threads inherit the mask of
// blocked signals.
class ShutdownSignals {
 public:
  ShutdownSignals();
  // Blocks until a signal arrives and returns its number, or returns 0 at `deadline`. After it has
  // returned a signal, a second signal ends the process at once, so that a user can stop a drain
  // that hangs.
  int Wait();
  int WaitUntil(TimePoint deadline);
  // Sends this process SIGTERM, on which the thread in Wait returns. Any thread. Call it once: a
  // second signal ends the process at once.
  static void Request();

 private:
  void RestoreDefaults();
};

// Counts the calls inside. After it was closed, no call can enter. Thread-safe.
//
// A gate with a limit shares its places among parties, such as connections: a party gets in as long
// as it has no more places than are free. A single party can thus have half of the places, `n`
// greedy ones leave 1 of `n + 1` to those that come later. (Choudhury and Hahne, "Dynamic queue
// length thresholds for shared-memory packet switches", 1998, with a factor of 1.)
class Gate {
 private:
  struct Party {
    std::string_view name;  // The key of its entry.
    uint64_t inside = 0;
  };

 public:
  // A party always gets this many places if they are free, so that small limits are of use.
  static constexpr uint64_t kSmallShare = 4;

  // A call's place inside, which the destructor gives back. Move-only. False: the gate was closed.
  class Pass {
   public:
    Pass() = default;
    Pass(Pass&& other) noexcept
        : gate_(std::exchange(other.gate_, nullptr)),
          party_(std::exchange(other.party_, nullptr)) {}
    Pass& operator=(Pass&& other) noexcept;
    ~Pass();
    explicit operator bool() const { return gate_ != nullptr; }

   private:
    friend class Gate;
    Pass(Gate* gate, Party* party) : gate_(gate), party_(party) {}
    Gate* gate_ = nullptr;
    Party* party_ = nullptr;  // nullptr: nobody's.
  };

  // At most `limit` calls may be inside. 0: no limit.
  explicit Gate(uint64_t limit = 0) : limit_(limit) {}
  enum class Refusal {
    kNone,
    kClosed,
    kFull,
    kShare,  // The party has its share.
  };
  // For a caller that belongs to no party.
  Pass Enter(Refusal* refusal = nullptr) { return Enter({}, refusal); }
  Pass Enter(std::string_view party, Refusal* refusal);
  void Close();
  // Waits until no call is inside. False: the deadline came first.
  bool WaitEmpty(TimePoint deadline);
  uint64_t inside() const;
  uint64_t limit() const { return limit_; }

 private:
  void Leave(Party* party);
  const uint64_t limit_;
  mutable Mutex mu_;
  CondVar empty_;
  uint64_t inside_ ABSL_GUARDED_BY(mu_) = 0;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  // Those that have somebody inside. Entries keep their addresses.
  std::map<std::string, Party, std::less<>> parties_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn
