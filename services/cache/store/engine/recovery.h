#pragma once
// Builds the index again from what the disk tier found after a restart.

#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

struct RecoveryResult {
  uint64_t namespaces = 0;             // Unreadable ones included.
  uint64_t unreadable_namespaces = 0;  // StoredNamespace: their blocks are kept.
  uint64_t blocks = 0;
  uint64_t released = 0;  // Extents of dropped generations, unknown namespaces, incomplete blocks,
                          // damaged records, and beyond the budget.
};

// Called once, before anything else uses the context. FAILED_PRECONDITION: there are blocks that
// this node cannot take, because another version stored them or because a limit of namespaces is
// lower than it was; none of them was deleted.
Result<RecoveryResult> RecoverFromDisk(NodeContext& context);

}  // namespace cairn::cache
