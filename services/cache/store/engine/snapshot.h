#pragma once
// The blocks that are here, a page at a time, so that a watcher's snapshot takes bounded memory and
// holds no lock for long: a kStored event for each block, and a kTierAdded for each further tier
// that it lies in.
//
// A page is the blocks whose keys fall into one range of the key map's hash. That does not depend
// on a block's place in the tree, which may change between two pages, so none is left out or told
// twice. Pages are of different times; each event that is published after the watcher subscribed is
// told after the last page, in order. Whoever applies both has what the node had: for each block
// and tier the last event decides, and where there is none, the page is of that very state.

#include <vector>

#include "services/cache/store/engine/cache_engine.h"
#include "services/cache/store/state/event_hub.h"
#include "services/cache/store/state/namespace_registry.h"

namespace cairn::cache {

// Not thread-safe. `tiers` outlives it.
class Snapshot {
 public:
  static constexpr size_t kPageBlocks = 1024;  // About.

  // A snapshot of the namespaces whose events the filter takes.
  Snapshot(const Tiers* tiers, const NamespaceRegistry& registry, const EventFilter& filter);

  // Appends the next blocks; false after the last.
  bool NextPage(std::vector<CacheEvent>* events);

 private:
  const Tiers& tiers_;
  NamespaceRegistry::List namespaces_;
  size_t namespace_ = 0;
  size_t range_ = 0;
  size_t ranges_ = 0;  // The ranges of the current namespace; 0: not yet begun.
};

}  // namespace cairn::cache
