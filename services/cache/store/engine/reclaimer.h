#pragma once
// Frees what dropped namespaces held, a little at a time: at first all that nobody reads, and the
// rest when its readers end. The part of the index that readers keep is charged to
// MemoryItem::kLeases, so that nobody else's blocks make room for it. Thread-safe.

#include <vector>

#include "services/cache/store/engine/write_path.h"
#include "services/cache/store/mover/pump.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class Reclaimer {
 public:
  Reclaimer(NodeContext* context, WritePath* writes)
      : context_(*context), writes_(*writes), pump_(context->executor, [this] { return Step(); }) {}

  // REQUIRES: ns->dropped.
  void Add(NamespacePtr ns);
  // Looks again at namespaces of which a part was still read.
  void Kick();
  // The memory of namespaces that are not freed yet, without the part that only readers keep.
  uint64_t MemoryBytes() const;
  size_t waiting() const;

 private:
  struct Dropped {
    NamespacePtr ns;
    bool pinned = false;  // Nothing is left but what readers keep.
    MemoryCharge charge = {};
  };

  bool Step();
  void Settle(const NamespacePtr& ns, BlockIndex::Reclaimed reclaimed);

  NodeContext& context_;
  WritePath& writes_;
  Pump pump_;
  mutable Mutex mu_;
  std::vector<Dropped> dropped_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::cache
