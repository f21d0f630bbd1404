#pragma once
// The bounds that settings, the model and the machine give a worker's memory.

#include <cstdint>

#include "cairn/common/status.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/engine/memory_items.h"
#include "services/worker/engine/worker_engine.h"

namespace cairn::worker {

// The bounds, and the options that became less: kv_pool_bytes if it was 0, parking_bytes if it had
// its default, request_bytes. `pool`: what kv_pool is, or would be by the model; `least_pool`: what
// it may become if the setting is 0. `taken`: what the transformer has taken already.
// RESOURCE_EXHAUSTED: all of it does not fit into options.memory_limit and into what this machine
// has left; the error names all items.
Result<MemoryAccount::Bounds> FitMemory(WorkerEngine::Options* options, uint64_t pool,
                                        uint64_t least_pool, uint64_t page_bytes,
                                        const Transformer::Memory& taken);

}  // namespace cairn::worker
