#pragma once
// The record of a namespace in the persistent tier.

#include "cairn/common/status.h"
#include "services/cache/state/node_context.h"

namespace cairn::cache {

// Writes the record unless it is there, or the node has no persistent tier. A block must never be
// on disk before it: recovery would not know what the block is. Blocks. NOT_FOUND: the namespace
// was dropped. Otherwise errors of the tier. Thread-safe.
Status PersistNamespace(NodeContext& context, NamespaceState& ns);

}  // namespace cairn::cache
