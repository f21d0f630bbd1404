#pragma once
// First stage of a selection: a score for each row of a segment, by layer and KV head.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cairn/kernels/selection/selection_kernels.h"
#include "kernels/selections/selection.h"

namespace cairn::selections {

// The data that the stages look at.
struct Segment {
  const ModelShape& shape;
  const ModelAccess& model;
  const SegmentKv& kv;
  kernels::ThreadPool& pool;
  const kernels::SelectionKernels& kernels;
  // The stream of a backend that runs inline: all threads of the pool use it.
  kernels::Stream& stream;

  bool AllFinite(const float* x, int64_t n) const {
    int64_t count = 0;
    kernels.count_non_finite(stream, {x, n, &count});
    return count == 0;
  }
};

// The scores of one layer: [kv_heads][tokens]. Rows that have a mark stay, whatever their score is;
// a scorer may mark more.
struct LayerScores {
  int32_t layer = 0;
  int64_t keep = 0;          // In units of 1 / kKeepUnits.
  int64_t rows_to_keep = 0;  // The rows that each head keeps when the budget is even.
  std::span<float> scores;
  std::span<uint8_t> marks;
};

// One segment's scores under way. Not thread-safe.
class ScorerRun {
 public:
  virtual ~ScorerRun() = default;

  // As SelectionRun::Observe.
  virtual void Observe(const QueryRows& queries, const Segment& segment) = 0;
  // Writes every score of the layer; those of marked rows are not read, but must be finite.
  virtual void Score(const Segment& segment, const LayerScores& out) = 0;
  // How much of the whole budget the layer should have; after Score. For stages that ask.
  virtual double LayerWeight(int32_t) const { return 1.0; }
};

// Rows that stay without being ranked: the first ones of a sequence, and the last ones.
struct Protected {
  int64_t first = 0;
  int64_t last = 0;
};

// Immutable, thread-safe.
class Scorer {
 public:
  virtual ~Scorer() = default;

  // As Selection::FirstObserved.
  virtual int64_t FirstObserved(int64_t tokens) const = 0;
  // In a segment of `tokens` rows of which `rows` are to be kept.
  virtual Protected Protects(int64_t tokens, int64_t rows) const = 0;
  virtual std::unique_ptr<ScorerRun> Begin(const ModelShape& shape, int64_t tokens) const = 0;
};

// For scorers that read K and V alone.
class UnobservedRun : public ScorerRun {
 public:
  void Observe(const QueryRows&, const Segment&) override {}
};

}  // namespace cairn::selections
