#pragma once
// Keeps a session with the node open, in steps.

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>

#include "cairn/common/clock.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/status.h"
#include "clients/cpp/src/core/node_client.h"
#include "clients/cpp/src/core/transport.h"
#include "common/concurrency/mutex.h"

namespace cairn::client {

//   connecting ──node says yes, namespaces opened──► open ──it ends──► connecting (at once)
//       │  ▲                                                               │
//       ▼  └─────────────────────── back-off passed ─────────── away ◄─failed or short-lived
//
// In the state away, Get fails at once, so that nobody waits for a node that is known to be gone.
//
// Somebody makes the steps: a StepThread, or, without one, the calls that need the session. Then
// no call waits, and everything happens on the threads of the callers.
//
// Thread-safe.
class Session {
 public:
  struct Options {
    Duration max_backoff = std::chrono::seconds(1);
    uint64_t seed = 0;        // Seed of the back-off's jitter.
    bool has_thread = false;  // A StepThread makes the steps.
  };

  // Runs `on_open` in a step, after each time a session opened. All outlive the session.
  Session(const Options& options, const Clock* clock, MainTransport* node,
          std::function<void()> on_open);

  // The open session. Waits until `deadline` while connecting, and then returns DEADLINE_EXCEEDED.
  // UNAVAILABLE while away.
  Result<SessionPtr> Get(TimePoint deadline);
  // The open session, nullptr if there is none now. Does not wait.
  SessionPtr Current() const;
  bool IsCurrent(const std::string& id) const;
  bool open() const;
  // The last session, open or not. nullptr before the first.
  SessionPtr Last() const;
  NodeCondition condition() const;
  uint64_t times_opened() const;

  // Opens the namespace at the beginning of each session. RESOURCE_EXHAUSTED: there are too many.
  Status Remember(const NamespaceSpec& spec, const NamespaceOptions& how = {});
  // True if a session has created the namespace when it was opened, since the last time that this
  // was called.
  bool TakeCreated(const Digest& fingerprint);
  // Call it when the node says that it does not know a namespace, for example because it was
  // dropped. The next step opens all namespaces again.
  void ReopenNamespaces();
  // Call it when a call failed, so the session may have ended. The next step looks, and comes soon.
  void Look();
  // The same, and waits for the result.
  bool HasEnded(const std::string& id, TimePoint deadline);

  // Does what is due, and returns when there will be something to do again. One step at a time is
  // made.
  TimePoint Step();
  // For a StepThread: waits until `until`, or for something to do before. False after Stop.
  bool WaitForWork(TimePoint until);
  // Ends the steps, and what they wait for.
  void Stop();

 private:
  enum class State { kConnecting, kOpen, kAway };

  TimePoint TryToOpen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mu_);
  TimePoint LookAtSession() ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mu_);
  TimePoint End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mu_);
  TimePoint GoAway(const Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mu_);
  Status OpenNamespaces() ABSL_EXCLUSIVE_LOCKS_REQUIRED(step_mu_);
  // Makes the steps on the caller's thread where no other does.
  void StepIfAlone();

  const Options options_;
  const Clock* const clock_;
  MainTransport* const node_;
  SessionLink& link_;
  const std::function<void()> on_open_;

  // Held during a step. Never taken with mu_ held.
  Mutex step_mu_;
  std::mt19937_64 random_ ABSL_GUARDED_BY(step_mu_);
  Duration backoff_ ABSL_GUARDED_BY(step_mu_);
  TimePoint attempt_began_ ABSL_GUARDED_BY(step_mu_) = {};

  mutable Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool reopen_ ABSL_GUARDED_BY(mu_) = false;
  // Calls that find their namespace missing again do not make this a loop without a pause.
  TimePoint next_reopen_ ABSL_GUARDED_BY(mu_) = {};
  uint64_t looks_wanted_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t looks_done_ ABSL_GUARDED_BY(mu_) = 0;
  State state_ ABSL_GUARDED_BY(mu_) = State::kConnecting;
  Status why_away_ ABSL_GUARDED_BY(mu_);
  TimePoint retry_at_ ABSL_GUARDED_BY(mu_) = {};
  SessionPtr current_ ABSL_GUARDED_BY(mu_);
  bool draining_ ABSL_GUARDED_BY(mu_) = false;  // While it is open.
  uint64_t times_opened_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<Digest, KnownNamespace> namespaces_ ABSL_GUARDED_BY(mu_);
  std::set<Digest> created_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::client
