#pragma once
// Decides which slices of a matched prefix are fetched, and how many blocks are computed instead.
//
// A prefix can be obtained from both ends at once: its front is computed, which needs nothing
// before it, while its tail is fetched, which needs nothing from the front (Cake, "Compute or load
// KV cache? Why not both?", arXiv 2410.03065, section 4; PartKVRec, "Efficient LLM inference with
// I/O-aware partial KV cache recomputation", arXiv 2411.17089, section 3). Unlike there the tail
// comes layer by layer, not block by block, so that the rest of the prompt can be computed on its
// first layers while the others arrive; and where the two ends meet is chosen again whenever
// something was measured.
//
//   blocks   0 ........ front | front ........ target | target ........ matched | rest
//            computed, there    to be computed          to be fetched             computed last
//
// Pure: no clock, no I/O, no lock.

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "services/worker/session/cost_model.h"

namespace cairn::worker {

// The missing parts of a fetch, cell by cell: a cell is one layer of one block. Not
// thread-safe.
class FetchPlan {
 public:
  // REQUIRES: both at least 1.
  FetchPlan(uint32_t blocks, uint32_t layers);

  // Blocks and layers [begin, end).
  struct Range {
    uint32_t block_begin = 0, block_end = 0;
    uint32_t layer_begin = 0, layer_end = 0;
    uint64_t cells() const { return uint64_t{block_end - block_begin} * (layer_end - layer_begin); }
    friend bool operator==(const Range&, const Range&) = default;
  };

  // Blocks before it are not fetched. It may grow and shrink.
  void SetTarget(uint32_t block) { target_ = block; }
  uint32_t target() const { return target_; }

  // The next range to ask for: the lowest layer in which cells of the blocks to be fetched are
  // missing, and the layers above it in which the same cells are missing, up to about `max_cells`
  // in total, but at least one layer. nullopt: nothing is missing.
  std::optional<Range> Next(uint64_t max_cells) const;

  void Arrived(uint32_t block, uint32_t layer);
  // The block is computed, so its cells are no longer missing, even if they did not come.
  void Computed(uint32_t block);
  bool computed(uint32_t block) const { return computed_[block]; }
  bool has(uint32_t block, uint32_t layer) const { return there_[Cell(block, layer)]; }

  // Cells that the layer misses, of blocks that are not computed.
  uint32_t LayerMissing(uint32_t layer) const { return layer_missing_[layer]; }
  uint32_t BlockMissing(uint32_t block) const {
    return computed_[block] ? 0 : block_missing_[block];
  }
  uint32_t blocks() const { return blocks_; }
  uint32_t layers() const { return layers_; }

 private:
  size_t Cell(uint32_t block, uint32_t layer) const {
    return static_cast<size_t>(layer) * blocks_ + block;
  }
  // Blocks [first, second) around those from the target on that miss the layer.
  std::pair<uint32_t, uint32_t> MissingOf(uint32_t layer) const;

  const uint32_t blocks_;
  const uint32_t layers_;
  uint32_t target_ = 0;
  std::vector<bool> there_;     // [layer][block]
  std::vector<bool> computed_;  // [block]
  std::vector<uint32_t> layer_missing_;
  std::vector<uint32_t> block_missing_;  // Also counts the cells of computed blocks.
};

// The input of a decision.
struct ChooserInput {
  uint32_t front = 0;  // Blocks that are there, from the prompt's first.
  int64_t block_tokens = 64;
  int64_t prompt_tokens = 0;   // More than the matched blocks have, or as many.
  int64_t chunk_tokens = 256;  // Computed at a time; whole blocks.
  uint64_t cell_bytes = 0;
  double latency_seconds = 0;   // Until the next byte can come; 0 while bytes are coming.
  double bytes_per_second = 1;  // Speed of the fetch alone.
  double share_beside = 1;      // The share of that speed that is left while blocks are computed.
  double slowdown = 1;          // The slowdown of computing while a fetch runs.
  // The time from now until its first and its last byte can leave the node, as the node estimates.
  // 0: unknown.
  double node_first_seconds = 0;
  double node_last_seconds = 0;
  // A target beyond `front` is chosen when its time is less than this share of the time for
  // fetching everything.
  double worth_it = 0.97;
  // The rest of the prompt is computed on the layers that have arrived, while others still arrive.
  bool overlap = true;
};

struct Choice {
  // Compute blocks up to here, then the rest. ChooserInput::front: fetch all that is missing; all
  // matched blocks: nothing is fetched, and chunks may reach into the rest.
  uint32_t target = 0;
  double seconds = 0;        // Until the prompt is computed, with it.
  double fetch_seconds = 0;  // The same with all fetched.
};

// Returns the target with the shortest time until the prompt is computed. Without a prefill model
// everything is fetched. O(matched blocks).
Choice Choose(const FetchPlan& plan, const PrefillModel& prefill, const ChooserInput& input);

}  // namespace cairn::worker
