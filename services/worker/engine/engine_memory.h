#pragma once
// The bounds that settings, the model and the machine give a worker's memory.

#include <cstdint>

#include "cairn/common/status.h"
#include "services/worker/compute/transformer.h"
#include "services/worker/engine/memory_items.h"
#include "services/worker/engine/worker_engine.h"

namespace cairn::worker {

// The bytes that the model makes of settings.
struct MemoryNeeds {
  uint64_t pool = 0;        // As kv_pool says, or would by the model.
  uint64_t least_pool = 0;  // What it may become if the setting is 0.
  uint64_t page = 0;
  // With a read policy, of one request, if kv_budget is 0: the longest context, and the least that
  // reads any.
  uint64_t near = 0;
  uint64_t least_near = 0;
  Transformer::Memory taken;  // What the transformer has taken already.
};

// The bounds, and the options that became less: kv_pool_bytes and kv_budget if they were 0,
// parking_bytes if it had its default, request_bytes. A kv_budget of 0 stays so where the longest
// contexts fit. RESOURCE_EXHAUSTED: all of it does not fit into options.memory_limit and into what
// this machine has left; the error names all items.
Result<MemoryAccount::Bounds> FitMemory(WorkerEngine::Options* options, const MemoryNeeds& needs);

}  // namespace cairn::worker
