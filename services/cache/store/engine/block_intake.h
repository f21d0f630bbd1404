#pragma once
// How a block comes into the index: the last step of every write, and all steps for blocks that
// come whole from a source. Thread-safe.
//
//   Reserve: room in host ─► [the source fills it, its bytes are verified] ─► Commit
//                        └─► Abort

#include <span>

#include "services/cache/store/mover/evictor.h"
#include "services/cache/store/mover/write_back.h"
#include "services/cache/store/source/block_source.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

class BlockIntake {
 public:
  BlockIntake(NodeContext* context, Evictor* evictor, WriteBack* write_back)
      : context_(*context), evictor_(*evictor), write_back_(*write_back) {}

  // Over its budget, the index takes a block in only when one goes: entries of slow tiers first.
  // RESOURCE_EXHAUSTED: none can go.
  Status MakeIndexRoom();
  // Makes a block visible whose parts lie in host. Afterwards, without the lock, CopyLater must be
  // called. REQUIRES: no living block has this key.
  BlockRef Show(NamespaceState& ns, const BlockKey& key, const PendingBlocks::Complete& block)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(ns.mu);
  // Puts a visible block in line for its copy to the persistent tier. `parts`: as they lie in host.
  void CopyLater(const NamespacePtr& ns, const BlockKey& key, const PartPlaces& parts);

  // Takes room in host for the block's parts, in their order. ALREADY_EXISTS: the block is here.
  // RESOURCE_EXHAUSTED: there is no room. NOT_FOUND: the namespace was dropped. REQUIRES: the parts
  // cover the grid.
  Result<Extents> Reserve(NamespaceState& ns, const BlockKey& key,
                          std::span<const SourceBlock::Part> parts);
  void Abort(NamespaceState& ns, const BlockKey& key, std::span<const Extent> room);
  // Makes the block visible and pins it, and takes the room. If somebody stored the block
  // meanwhile, pins that one. NOT_FOUND: the namespace was dropped; Abort must follow. REQUIRES:
  // reserved, and its bytes were verified.
  Result<PinId> Commit(const NamespacePtr& ns, const BlockKey& key, const SourceBlock& block,
                       std::span<const Extent> room);

 private:
  NodeContext& context_;
  Evictor& evictor_;
  WriteBack& write_back_;
};

}  // namespace cairn::cache
