#pragma once
// The engine's side of its cache node: the session, the pushes, and what is published.

#include <memory>
#include <optional>

#include "cairn/client/cache_client.h"
#include "cairn/common/clock.h"
#include "common/concurrency/executor.h"
#include "common/concurrency/wakeup.h"
#include "services/worker/engine/engine_parts.h"
#include "services/worker/engine/recipe_stage.h"
#include "services/worker/session/prefix_session.h"
#include "services/worker/session/push_queue.h"

namespace cairn::worker {

// Thread-safe, apart from the publisher, which is the engine's thread's.
class EngineCache {
 public:
  // Opens the namespaces; a node that is away is not waited for. REQUIRES: the parts have a cache.
  // `wakeup`: notified of what comes of fetches, waits and pushes. All must outlive it.
  EngineCache(const EngineParts& parts, Executor& executor, Wakeup& wakeup);
  EngineCache(const EngineCache&) = delete;
  EngineCache& operator=(const EngineCache&) = delete;

  client::CacheClient& client() { return client_; }
  PrefixSession& session() { return *session_; }
  const PrefixSession& session() const { return *session_; }
  PushQueue& push() { return *push_; }
  // For blocks that another worker waits for: never paused, and not at a low priority.
  PushQueue& urgent_push() { return *urgent_push_; }
  // Spills drive it, one at a time.
  PushQueue& spill_push() { return *spill_push_; }
  // Turned prompts drive it, one at a time.
  PushQueue& turn_push() { return *turn_push_; }
  // Null: no published recipe has a stage.
  StagePublisher* stages() { return stages_.get(); }

  // Blocks of requests are on their way to the node.
  bool pushing() const;
  PushQueue::Stats push_stats() const;
  // Waits until all blocks are pushed. False: not before the deadline.
  bool WaitPushed(TimePoint deadline);
  // Ends all pushes, at the deadline what is left of them.
  void Stop(TimePoint deadline);

 private:
  // A node that is away is not waited for again: the client opens them once it is there.
  void OpenPublished(const EngineParts& parts);

  client::CacheClient& client_;
  std::optional<PushQueue> push_;
  std::optional<PushQueue> urgent_push_;
  std::optional<PushQueue> spill_push_;
  std::optional<PushQueue> turn_push_;
  std::optional<PrefixSession> session_;
  std::unique_ptr<StagePublisher> stages_;
};

}  // namespace cairn::worker
