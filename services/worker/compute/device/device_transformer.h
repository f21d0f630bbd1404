#pragma once
// The forward pass on a device: see transformer.h, whose promises hold here, too, with the device's
// own last bits. KV that a CPU computed has another numerics id, so the two never mix.

#include <memory>

#include "cairn/common/status.h"
#include "services/worker/compute/transformer.h"

namespace cairn::worker {

// `threads` are those of Transformer::thread_pool. INVALID_ARGUMENT: the model's shapes are none
// that the kernels have. NOT_FOUND: the device's library has no such kernels. RESOURCE_EXHAUSTED:
// too little memory, with what for.
Result<std::unique_ptr<Transformer>> MakeDeviceTransformer(const model::Model& model,
                                                           const Transformer::Options& options,
                                                           int threads, int64_t max_context);

}  // namespace cairn::worker
