#pragma once
// Gives blocks in pages to the cache node, and leases them there, next to the engine's thread: a
// node that takes long must not hold up the tokens of other requests.

#include <memory>
#include <span>
#include <vector>

#include "cairn/client/cache_client.h"
#include "cairn/common/clock.h"
#include "cairn/common/status.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/wakeup.h"
#include "services/worker/session/background_task.h"
#include "services/worker/session/push_queue.h"
#include "services/worker/session/push_turn.h"
#include "services/worker/session/spilled_kv.h"

namespace cairn::worker {

// The engine's thread uses it; the work is a BackgroundTask. Destroying it drops what has not been
// sent, and waits for the rest.
class BlockSpill {
 public:
  // All must outlive it.
  struct Dependencies {
    client::CacheClient& client;
    const Clock& clock;
    Executor& executor;
    PushQueue& push;
    PushTurn& turn;
    Wakeup& wakeup;  // Notified when it is done.
  };
  struct Wanted {
    Digest fingerprint;
    const KvCodec* codec = nullptr;
    std::vector<ComputedBlock> blocks;
    // To be leased: of the prompt's first blocks, with `blocks` at the end.
    std::vector<BlockKey> keys;
    int64_t held_tokens = 0;  // Leased before.
    int64_t all_tokens = 0;   // Tokens of all keys.
    Duration flush_deadline;
    std::string trace;
  };
  // Until it is done, nobody else uses `kv`, and the pages of the blocks do not change.
  BlockSpill(const Dependencies& dependencies, SpilledKv& kv, Wanted wanted);
  ~BlockSpill();
  BlockSpill(const BlockSpill&) = delete;
  BlockSpill& operator=(const BlockSpill&) = delete;

  bool done() const { return task_.done(); }
  // Sends nothing more. It is done soon.
  void Cancel();

  struct Outcome {
    bool taken = false;  // The node took all blocks.
    Status refused;      // Else why it did not take one.
    Status held;         // The status of the lease; kv.tokens() says what it covers.
    bool full = false;   // The node has no room next to what is leased.
  };
  // REQUIRES: done.
  const Outcome& outcome() const;

 private:
  struct Work;
  const std::unique_ptr<Work> work_;
  const BackgroundTask task_;
};

}  // namespace cairn::worker
