#pragma once
// Finished turns, which are prefilled while no request runs or waits, so that the next turn of the
// conversation finds exact blocks at the cache node.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cairn/common/clock.h"
#include "common/concurrency/mutex.h"
#include "services/worker/engine/prompt_way.h"
#include "services/worker/engine/request_queue.h"
#include "services/worker/kv/kv_pool.h"

namespace cairn::worker {

// Thread-safe, but one thread, the engine's, calls Keep and Step.
class IdleTurns {
 public:
  struct Parts {
    KvPool& pool;
    const Clock& clock;
    bool lossy = false;  // The cache stores KV in another form than it was computed in.
    size_t most = 4;     // Turns that wait. For one more the oldest is dropped.
    // The tokens of prompt and answer, as the next turn will begin with them (prompt.h).
    std::function<std::vector<model::TokenId>(const Job&, const GenerateSummary&)> finished_turn;
    std::function<PromptReport(const PromptRequest&)> compute;  // PromptKv::Compute.
    std::function<bool()> stop;     // A request has come: the prefill makes way for it.
    std::function<bool()> pushing;  // Blocks of requests are on their way to the node.
  };
  // All that `parts` refers to must outlive it.
  explicit IdleTurns(Parts parts) : parts_(std::move(parts)) {}

  // A request that wants its turn kept is finished. `sequence`: its KV, which this may change.
  void Keep(const Job& job, const GenerateSummary& summary, std::shared_ptr<KvSequence> sequence);

  enum class Progress : uint8_t {
    kWorked,   // A turn is prefilled, or has made way for a request and waits again.
    kWaiting,  // The next one waits for its request's blocks to be pushed.
    kIdle,     // There is none.
  };
  // Prefills the oldest turn.
  Progress Step();

  // The turns give up their pages, and fetch or compute their prompts again.
  void DropPages();
  void Clear();
  // Waits until there is none. False: not before the deadline.
  bool WaitNone(TimePoint deadline) const;

  struct Stats {
    uint64_t prefilled_tokens = 0;
    uint64_t dropped = 0;
  };
  Stats GetStats() const;

 private:
  struct Turn {
    std::vector<model::TokenId> tokens;  // Whole blocks.
    // The finished request's KV, cut to the blocks that the prefill path computed; may be null.
    std::shared_ptr<KvSequence> sequence;
    std::string trace;
  };
  void Prefill(Turn turn);

  const Parts parts_;
  mutable Mutex mu_;
  mutable CondVar changed_;
  std::deque<Turn> turns_ ABSL_GUARDED_BY(mu_);
  bool running_ ABSL_GUARDED_BY(mu_) = false;
  Stats totals_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::worker
