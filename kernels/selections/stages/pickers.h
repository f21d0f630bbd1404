#pragma once
// Third stage of a selection: which rows a head keeps, given scores and budgets.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/selections/stages/grid.h"
#include "kernels/selections/stages/scorer.h"

namespace cairn::selections {

struct PickQuestion {
  int32_t layer = 0;
  int64_t keep = 0;          // In units of 1 / kKeepUnits.
  int64_t rows = 0;          // The rows of each head, in the mean.
  const int64_t* head_rows;  // [kv_heads]
  std::span<const float> scores;
};

// Immutable, thread-safe.
class Picker {
 public:
  virtual ~Picker() = default;
  // Marks the rows of a layer that stay, in addition to those that have marks: [kv_heads][tokens].
  // False when a number that it computed is not finite.
  [[nodiscard]] virtual bool Pick(const Segment& segment, const PickQuestion& question,
                                  std::span<uint8_t> marks) const = 0;
};
using PickerPtr = std::unique_ptr<const Picker>;

// The best rows of each head.
PickerPtr TokenPicker();
// Whole chunks of `chunk` neighbouring rows, the same for all heads of the layer: the best
// floor(chunks * keep) by the mean of the scores. Chunks with a marked row come first. Head budgets
// are not looked at (ChunkKV, kvpress's form). A segment shorter than a chunk has its best rows,
// and so have the layers behind the first `chunked` thousandths of all.
PickerPtr ChunkPicker(int64_t chunk, int64_t chunked = 1000);
// `first` thousandths of a head's rows, and no fewer than SafeRows(rows, alpha), by score; the
// others by (score + 1e-4) * projected norm of the value (CriticalKV).
PickerPtr TwoStagePicker(int64_t first, int64_t alpha);
// Picks all but `lot` thousandths of a head's rows (not counting its marks) by score, and draws the
// others without replacement, with probabilities softmax(score * factor) among the rows that are
// left (NACL). Draws are each layer's and head's own.
PickerPtr LotteryPicker(int64_t lot, int64_t factor, uint64_t seed);

}  // namespace cairn::selections
