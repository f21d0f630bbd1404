#pragma once
// A trace against real nodes, with small blocks in place of the KV of its tokens.

#include <cstdint>
#include <memory>
#include <span>

#include "cairn/client/cache_client.h"
#include "cairn/common/status.h"
#include "tools/cairn/replay/replay.h"
#include "tools/cairn/replay/trace.h"

namespace cairn::cli::replay {

struct NodesOptions {
  // Payload of a block of the trace: a multiple of 128.
  uint64_t block_bytes = 4096;
  // The seed of the namespace: two replays with different seeds share no blocks.
  uint64_t seed = 1;
};

// One request after the other, as fast as the nodes answer: each matches its blocks with its hint,
// gives the lease back and pushes the others. Requests that begin with the same block go to the
// same node. A node that is full drops blocks by its own policy; what it refuses is not stored, and
// `refused_blocks` counts it. `evictions` and `disk_writes` (bytes over those of
// a block) are what the nodes counted meanwhile, for everybody.
//
// `clients`: at least one, each of one node. Errors: those of the first call that fails, with the
// number of the request.
Result<ReplayResult> ReplayOnNodes(const Trace& trace, const NodesOptions& options,
                                   std::span<const std::unique_ptr<client::CacheClient>> clients,
                                   const ReplayProgress& progress = {});

}  // namespace cairn::cli::replay
