#pragma once
// Where the KV blocks of an inference engine lie in a device's memory, and the copies between these
// places and flat blocks.

#include <cstdint>
#include <span>
#include <vector>

#include "cairn/common/status.h"
#include "common/device/driver_table.h"

namespace cairn::pages {

// Bytes that every block has: block b has `bytes` of them at `address` + b * `stride`.
struct PageRun {
  uint64_t address = 0;
  uint64_t stride = 0;
  uint64_t bytes = 0;
};

struct EnginePages {
  // In the order in which the bytes of a block are stored. One run, if the engine keeps the layers
  // of a block next to each other; else mostly one for each layer.
  std::vector<PageRun> runs;
  uint32_t blocks = 0;

  uint64_t block_bytes() const;
};

// INVALID_ARGUMENT names the field: no runs or no blocks, a run of no bytes, blocks that overlap,
// addresses that do not fit into 64 bits.
Status Validate(const EnginePages& pages);

// A block of the engine, and the address of the same block as one run of bytes.
struct BlockCopy {
  uint32_t block = 0;
  uint64_t flat = 0;
  uint64_t first_position = 0;  // Position of the block's first token in its sequence.
};
// From pages to flat blocks, and back. Neighbours become one task. REQUIRES: valid pages, and
// blocks that they have.
std::vector<device::CopyTask> GatherTasks(const EnginePages& pages,
                                          std::span<const BlockCopy> blocks);
std::vector<device::CopyTask> ScatterTasks(const EnginePages& pages,
                                           std::span<const BlockCopy> blocks);

}  // namespace cairn::pages
