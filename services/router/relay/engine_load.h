#pragma once
// How loaded an engine is that reports nothing: from what this router sent there, and when the
// answers came.
//
//   Begin ─► waiting (its prompt is to be computed) ─ Tokens ─► decoding ─► End
//
// Other routers' requests are seen only in that all becomes slower.

#include <cstdint>
#include <unordered_map>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "services/router/policy/worker_load.h"
#include "services/router/relay/linear_fit.h"

namespace cairn::router {

// Thread-safe.
class EngineLoad {
 public:
  // `clock` must outlive it.
  explicit EngineLoad(const Clock* clock) : clock_(clock) {}

  struct Prompt {
    uint32_t tokens = 0;
    uint32_t held_tokens = 0;  // Tokens of the prompt that need not be computed.
    bool stream = false;       // Tokens will be called.
  };
  // A request goes there. Returns its id.
  uint64_t Begin(const Prompt& prompt);
  // `events` events with tokens of its answer have come.
  void Tokens(uint64_t id, uint32_t events);
  // However it ended.
  void End(uint64_t id);
  // The engine says that an answer which came in `events` events has `tokens` tokens.
  void Length(uint32_t events, uint32_t tokens);
  // The tokens of `events` events: more where the engine sends several at once.
  uint32_t TokensOf(uint32_t events) const;

  WorkerLoad Report() const;

 private:
  static constexpr double kAssumedTokensPerSecond = 2'000;  // As the dispatcher's.
  struct Request {
    TimePoint sent;
    double tokens = 0;  // Tokens of the prompt that are to be computed.
    bool stream = false;
    bool alone = false;  // No prompt waited when it came.
    bool decodes = false;
    TimePoint last_token;
  };
  // The speed of prompts. 0: not known.
  double PrefillSpeed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double DrainSpeed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double TokensOfEvent() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  double AssumedSpeed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StopWaiting(Request* request, TimePoint now, bool computed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whole answers do not say when their prompt was computed: when it should have been.
  bool Computed(const Request& request, TimePoint now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Clock* const clock_;
  mutable Mutex mu_;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
  std::unordered_map<uint64_t, Request> requests_ ABSL_GUARDED_BY(mu_);
  uint32_t waiting_ ABSL_GUARDED_BY(mu_) = 0;  // Streams whose first token has not come.
  uint32_t decoding_ ABSL_GUARDED_BY(mu_) = 0;
  TimePoint busy_since_ ABSL_GUARDED_BY(mu_);  // Prompts wait, and none was computed since then.
  TimePoint free_since_ ABSL_GUARDED_BY(mu_);  // If none waits: since then.
  LinearFit alone_ ABSL_GUARDED_BY(mu_){32};   // Seconds to the first token over tokens.
  LinearFit drain_ ABSL_GUARDED_BY(mu_){64};   // Seconds between first tokens over tokens.
  // Seconds of an event over requests that decode, while no prompt waits: steps that compute
  // prompts are many times as long, and then more requests decode, too.
  LinearFit step_ ABSL_GUARDED_BY(mu_){4096};
  LinearFit length_ ABSL_GUARDED_BY(mu_){64};  // Tokens over events, of whole answers.
};

}  // namespace cairn::router
