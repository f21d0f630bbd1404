#pragma once
// Takes blocks out of a tier whose bytes are gone for good, as those of a GPU that was lost
// (Tier::IsLost). Blocks in other tiers stay. Thread-safe.

#include <atomic>

#include "services/cache/store/mover/pump.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class LostExtents {
 public:
  // After a loss it looks again so often: a copy that was under way may have come since.
  static constexpr Duration kLookAgain = std::chrono::seconds(30);

  explicit LostExtents(NodeContext* context)
      : context_(*context), pump_(context->executor, [this] { return Step(); }) {}

  // Starts a look if a tier has lost something since the last one.
  void Tick();

 private:
  bool Step();
  void Remove(NamespaceState& ns, TierKind tier);

  NodeContext& context_;
  ByTier<std::atomic<uint64_t>> seen_ = {};  // Losses of the tiers.
  std::atomic<TimePoint> next_look_{TimePoint::max()};
  std::atomic<bool> wanted_{false};
  Pump pump_;
};

}  // namespace cairn::cache
