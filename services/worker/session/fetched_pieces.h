#pragma once
// The pieces of a fetch that have arrived: some heads of one layer of one block each.

#include <cstdint>
#include <optional>
#include <vector>

#include "cairn/common/clock.h"
#include "cairn/common/kv/miss_reason.h"
#include "services/worker/session/fetched_bytes.h"

namespace cairn::worker {

// Not thread-safe.
class FetchedPieces {
 public:
  struct Shape {
    uint32_t blocks = 0;  // At least 1, all of them.
    uint32_t layers = 0;
    uint32_t heads = 0;
  };
  struct Piece {
    uint32_t block = 0;
    uint32_t layer = 0;
    uint32_t head_begin = 0;
    uint32_t head_end = 0;  // Exclusive.
  };
  // First and last piece of a layer, in seconds since the start; both 0 when none came.
  struct LayerTimes {
    double first = 0;
    double last = 0;
  };
  FetchedPieces(const Shape& shape, TimePoint start);

  const Shape& shape() const { return shape_; }
  // How many of the piece's heads have not arrived; 0 for a piece outside of the fetch.
  uint32_t Missing(const Piece& piece) const;

  struct From {
    uint64_t bytes = 0;
    std::optional<TierKind> tier;
    bool lent = false;
  };
  // The parts that are complete with a piece, and were not before.
  struct Completed {
    bool cell = false;  // The layer of the block.
    bool block = false;
  };
  // Parts may overlap: heads that were there are not counted again. REQUIRES: Missing(piece) > 0.
  Completed Arrived(const Piece& piece, const From& from, TimePoint now);
  // The block will not come. Only the first reason counts.
  void Fail(uint32_t block, MissReason reason);

  // No piece of the block has arrived.
  bool Untouched(uint32_t block) const {
    return block_missing_[block] == shape_.layers * shape_.heads;
  }
  // All of the block is there, and it has not failed.
  bool Whole(uint32_t block) const {
    return block_missing_[block] == 0 && block_reason_[block] == MissReason::kNone;
  }
  // The first block that has failed; the number of blocks if none has.
  uint32_t first_failed() const { return first_failed_; }
  bool failed() const { return first_failed_ < shape_.blocks; }
  // kNone unless the block failed.
  MissReason reason(uint32_t block) const { return block_reason_[block]; }

  // The time of the last piece; the start when nothing has arrived.
  TimePoint last_arrival() const { return last_arrival_; }
  const BytesByTier& bytes() const { return bytes_; }
  const std::vector<LayerTimes>& layer_times() const { return layer_times_; }

 private:
  size_t Cell(const Piece& piece) const {
    return static_cast<size_t>(piece.layer) * shape_.blocks + piece.block;
  }

  const Shape shape_;
  const TimePoint start_;
  std::vector<bool> arrived_;  // [layer][block][head]
  // Heads still to come, by cell and by block.
  std::vector<uint32_t> cell_missing_;
  std::vector<uint32_t> block_missing_;
  std::vector<MissReason> block_reason_;
  uint32_t first_failed_;
  TimePoint last_arrival_;
  BytesByTier bytes_;
  std::vector<LayerTimes> layer_times_;
};

}  // namespace cairn::worker
