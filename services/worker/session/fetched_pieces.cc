#include "services/worker/session/fetched_pieces.h"

#include <algorithm>

#include "cairn/common/status.h"

namespace cairn::worker {

FetchedPieces::FetchedPieces(const Shape& shape, TimePoint start)
    : shape_(shape),
      start_(start),
      arrived_(static_cast<size_t>(shape.blocks) * shape.layers * shape.heads, false),
      cell_missing_(static_cast<size_t>(shape.blocks) * shape.layers, shape.heads),
      block_missing_(shape.blocks, shape.layers * shape.heads),
      block_reason_(shape.blocks, MissReason::kNone),
      first_failed_(shape.blocks),
      last_arrival_(start),
      layer_times_(shape.layers) {
  CAIRN_CHECK(shape.blocks > 0 && shape.layers > 0 && shape.heads > 0);
}

uint32_t FetchedPieces::Missing(const Piece& piece) const {
  if (piece.block >= shape_.blocks || piece.layer >= shape_.layers ||
      piece.head_end > shape_.heads) {
    return 0;
  }
  uint32_t missing = 0;
  for (uint32_t head = piece.head_begin; head < piece.head_end; ++head) {
    missing += arrived_[Cell(piece) * shape_.heads + head] ? 0 : 1;
  }
  return missing;
}

FetchedPieces::Completed FetchedPieces::Arrived(const Piece& piece, const From& from,
                                                TimePoint now) {
  const uint32_t heads = Missing(piece);
  CAIRN_CHECK(heads > 0);
  for (uint32_t head = piece.head_begin; head < piece.head_end; ++head) {
    arrived_[Cell(piece) * shape_.heads + head] = true;
  }
  cell_missing_[Cell(piece)] -= heads;
  block_missing_[piece.block] -= heads;
  last_arrival_ = now;
  bytes_.Of(from.tier) += from.bytes;
  if (from.lent) bytes_.lent += from.bytes;
  LayerTimes& times = layer_times_[piece.layer];
  times.last = Seconds(now - start_);
  if (times.first == 0) times.first = times.last;
  return {.cell = cell_missing_[Cell(piece)] == 0, .block = block_missing_[piece.block] == 0};
}

void FetchedPieces::Fail(uint32_t block, MissReason reason) {
  if (block_reason_[block] == MissReason::kNone) block_reason_[block] = reason;
  first_failed_ = std::min(first_failed_, block);
}

}  // namespace cairn::worker
