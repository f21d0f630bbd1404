#pragma once
// The conditions under which Transformer::Forward accepts a chunk, wherever it computes.

#include <cstdint>
#include <span>

#include "cairn/common/status.h"
#include "services/worker/compute/transformer.h"

namespace cairn::worker {

struct ChunkLimits {
  const KvLayout& layout;
  int64_t max_rows = 0;
  int64_t max_wide_rows = 0;
  int64_t max_context = 0;
  int32_t vocab = 0;
  bool takes_earlier = true;  // SequenceChunk::earlier and reader.
};

// INVALID_ARGUMENT names the chunk and the field. OUT_OF_RANGE: beyond max_context.
Status CheckChunks(std::span<const SequenceChunk> chunks, const ChunkLimits& limits);

}  // namespace cairn::worker
