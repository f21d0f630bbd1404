#pragma once
// The probes of cairn_gpu_probe. Each prints rows (rows.h). An error: the step failed.

#include "tests/gpu/probe/bench.h"

namespace cairn::gpu {

// Name, memory, capability: what the table is about. Fails where there is no device.
Status ProbeDevice(const ProbeOptions& options);
// The machine's own rates: memory of the device, pinned copies both ways, products.
Status ProbeLimits(const ProbeOptions& options);
// Codecs, hashes and moves of pages, as shares of a copy in the device.
Status ProbeSlices(const ProbeOptions& options);
// Attention, as shares of memory and of products.
Status ProbeAttention(const ProbeOptions& options);
// A prefill's products alone, and the scores and budgets of a selection.
Status ProbeForward(const ProbeOptions& options);
// The cost of saving its KV for an engine's step.
Status ProbeSave(const ProbeOptions& options);
// Copies between a node's tiers, as shares of plain ones.
Status ProbeTier(const ProbeOptions& options);
// A chunk of device memory in two processes: the other one is this program again.
Status ProbeChunks(const ProbeOptions& options);
// The other process. `socket`: where the first one sends descriptors.
Status ReadChunk(const ProbeOptions& options, int socket);
// The cost of another process that copies for one that computes.
Status ProbeNeighbour(const ProbeOptions& options);
// That other process: until it is killed.
Status CopyForEver(const ProbeOptions& options);
// Faults that are made on purpose, and must be refused, noticed or survived.
Status ProbeFaults(const ProbeOptions& options);

}  // namespace cairn::gpu
