#pragma once
// The record of a namespace in the persistent tier.

#include <cstdint>

#include "cairn/common/status.h"
#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

// Writes the record unless it is there, or the node has no persistent tier. A block must never be
// on disk before it: recovery would not know what the block is. Blocks. NOT_FOUND: the namespace
// was dropped. Otherwise errors of the tier. Thread-safe.
Status PersistNamespace(NodeContext& context, NamespaceState& ns);

// Writes the record again, with this generation and with the life of blocks that `ns` has now.
// `dropped`: the record only keeps the generation. Needs a persistent tier, and `meta_mu`, so that
// the records of a namespace are written one after the other. Blocks. Errors: those of the tier.
Status RewriteNamespaceRecord(NodeContext& context, const NamespaceState& ns, uint64_t generation,
                              bool dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(context.meta_mu);

}  // namespace cairn::cache
