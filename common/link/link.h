#pragma once
// One communicator from its first step to its last, on threads that it may lose.
//
//   kOpening ── Join ─► kJoining ─► kIdle ◄──► kMoving
//       └───────────────────┴─────────┴───────────┴── a call fails, a deadline passes, End
//                                                          │
//   kEnding:  the issuing thread leaves its call, or `grace` passes
//             ─► Revoke returns, or `revoke` passes ─► Abort returns ─► kEnded
//                                                      or `abort` passes ─► kAbandoned
//
// Every call into the communicator is made on the link's issuing thread, except for Revoke and
// Abort, which have threads of their own. No state lasts longer than its deadline, whatever the
// library does.
//
// **Memory.** A late write of a peer must not hit memory that has another use meanwhile. So what
// keeps a move's bytes is let go of when the move has ended well, or when Abort has returned
// and the issuing thread is out of the library. If that never happens, those bytes stay kept until
// the process ends.

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/mutex.h"
#include "common/concurrency/timers.h"
#include "common/link/communicator.h"

namespace cairn::link {

// Thread-safe. Callbacks run without a lock, on any thread, and must be short.
class Link : public std::enable_shared_from_this<Link> {
 public:
  struct Options {
    Duration join = std::chrono::seconds(10);  // From Begin until both have joined.
    Duration grace = std::chrono::milliseconds(200);
    Duration revoke = std::chrono::seconds(1);
    Duration abort = std::chrono::seconds(5);
    Duration poll = std::chrono::microseconds(200);  // Between two questions whether it has ended.
  };
  // A new thread for calls that may hang: LoneThread in products. Destroying it must not wait.
  using Threads = std::function<std::shared_ptr<Executor>(const char* name)>;
  struct Dependencies {
    Timers* timers = nullptr;
    const Clock* clock = nullptr;
    Threads threads;
  };
  struct Events {
    std::function<void()> idle = [] {};  // It has joined, or a move has ended well.
    // Once, when kEnding begins.
    std::function<void(const Status& why)> ending = [](const Status&) {};
    // Once: the communicator is gone, or abandoned and still takes memory.
    std::function<void(const Link& link, bool abandoned)> ended = [](const Link&, bool) {};
  };
  struct Transfer {
    Move move = {};
    TimePoint deadline{};
    std::shared_ptr<void> keep = {};  // Keeps the bytes as they are.
    // Runs once. Not OK: the bytes may be there in part.
    std::function<void(Status)> done = [](const Status&) {};
  };
  enum class State { kOpening, kJoining, kIdle, kMoving, kEnding, kEnded, kAbandoned };

  // All that `dependencies` names must outlive the link until the link has ended. It lives as long
  // as work of it is under way.
  Link(Options options, Dependencies dependencies, Events events);

  // Runs `first` on the issuing thread; it leads to Join or End. Once.
  void Begin(std::function<void()> first);
  // REQUIRES: Begin was called.
  void Join(std::shared_ptr<Communicator> communicator);
  // For a reader, before it tells the peer of its next move: a put may come from then on. `keep`
  // stays until a move ends well, or as long as that of a transfer. nullptr: the peer has refused.
  // False: the link ends, and the peer must not be told.
  bool Hold(std::shared_ptr<void> keep);
  // Begins when it has joined, behind those before it. RESOURCE_EXHAUSTED: kMostTransfers are under
  // way. FAILED_PRECONDITION: the link ends. After an error `done` does not run.
  static constexpr size_t kMostTransfers = 4;
  Status Start(Transfer transfer);
  // Ends it, now. OK: nothing is wrong, it is only not needed any more.
  void End(const Status& why);

  State state() const;
  // Whether puts work. REQUIRES: it has been idle.
  bool puts() const;
  // When the last move began or ended; at first, when it was made.
  TimePoint used() const;
  // The communicator is aborted and out of the library. For tests.
  bool quiet() const;

 private:
  // Makes a call into the communicator on the issuing thread, unless it is ending.
  void Run(std::function<Status(Communicator&)> call);
  void Poll();
  void HasEnded();
  void Issue();
  void LeftCall();
  void RevokeNow();
  Executor* NewEnder();
  void AbortNow();
  void Aborted();
  void Abandon();
  void Finish(State state);

  const Options options_;
  const Dependencies dependencies_;
  const Events events_;
  std::shared_ptr<Executor> thread_;  // Constant after Begin.
  mutable Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kOpening;
  std::shared_ptr<Communicator> communicator_ ABSL_GUARDED_BY(mu_);
  bool busy_ ABSL_GUARDED_BY(mu_) = false;  // The issuing thread is in a call.
  bool puts_ ABSL_GUARDED_BY(mu_) = false;
  // In kMoving the first one is under way.
  std::deque<Transfer> transfers_ ABSL_GUARDED_BY(mu_);
  Timers::Id deadline_ ABSL_GUARDED_BY(mu_) = 0;  // The deadline of joining, or of the transfer.
  bool revoking_ ABSL_GUARDED_BY(mu_) = false, aborting_ ABSL_GUARDED_BY(mu_) = false,
                 aborted_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<void> held_ ABSL_GUARDED_BY(mu_);
  // Memory of the transfer that did not end well.
  std::shared_ptr<void> kept_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Executor>> enders_ ABSL_GUARDED_BY(mu_);  // At most two.
  TimePoint used_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::link
