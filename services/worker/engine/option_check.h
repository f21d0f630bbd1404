#pragma once
// The errors of an engine's options that are known before anything is loaded.

#include "cairn/common/status.h"
#include "services/worker/engine/worker_engine.h"

namespace cairn::worker {

// INVALID_ARGUMENT or UNIMPLEMENTED, which names the option, its value and what was expected:
// numbers out of range, names that nothing has (of the device, recipes, the read policy), and
// options that exclude each other. Whether the model can be loaded, and whether its KV can be
// stored and read in these ways, is for LoadEngineParts to say, which begins with this check.
Status CheckOptions(const WorkerEngine::Options& options);

}  // namespace cairn::worker
