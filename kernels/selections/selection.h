#pragma once
// A selection chooses which tokens of a segment each layer and KV head keeps. The others are
// forgotten.
//
//   Selection::Begin -> SelectionRun: Observe(...)*, Select() -> KeptRows
//
// A segment is a run of tokens that is selected once, when its KV is computed
// (docs/methods/selections.md). Its rows are numbered from 0. A selection ranks only the segment's
// own rows, and its softmax runs over these. It ignores the rows that were kept of earlier
// segments.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "cairn/kernels/attention.h"
#include "cairn/kernels/thread_pool.h"
#include "kernels/selections/kept_rows.h"

namespace cairn::selections {

struct ModelShape {
  int32_t layers = 0;
  int32_t query_heads = 0;  // A multiple of kv_heads: query head h reads KV head h / group().
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t hidden = 0;
  int32_t rope_dim = 0;  // Channels that turn with the position, in half-split order.
  double rope_base = 0;

  int32_t group() const { return query_heads / kv_heads; }
  bool operator==(const ModelShape&) const = default;
};

// The facts about the model that some selections read.
struct ModelAccess {
  // Writes the output projection of a layer: [query_heads * head_dim][hidden] float32.
  std::function<void(int32_t layer, float* out)> output_projection;
  // Ids of the vocabulary's tokens that end a phrase (punctuation, line ends), ascending.
  std::span<const int32_t> separators;
};

// The KV of a segment while it is still whole, in binary16, keys after RoPE.
struct SegmentKv {
  int64_t tokens = 0;
  // The position of row 0 in the sequence. 0: the sequence begins here.
  int64_t first_position = 0;
  std::span<const kernels::PagedKv> layers;  // Token t of a view is row t.
  std::span<const int32_t> token_ids;        // As many as tokens.
};

// Queries of rows [first_row, first_row + rows) in one layer, after RoPE:
// [rows][query_heads][head_dim] float32, rows `stride` numbers apart.
struct QueryRows {
  int32_t layer = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
  const float* q = nullptr;
  int64_t stride = 0;
};

// One segment's selection under way. Not thread-safe.
class SelectionRun {
 public:
  virtual ~SelectionRun() = default;

  // Called for every layer with all rows from FirstObserved on, ascending, in any cuts; layers may
  // take turns. K and V of the layer's rows before first_row + rows are in `kv` by then.
  virtual void Observe(const QueryRows& queries, const SegmentKv& kv,
                       kernels::ThreadPool& pool) = 0;

  // After all was observed. False when scores were not finite: keep everything then.
  [[nodiscard]] virtual bool Select(const SegmentKv& kv, kernels::ThreadPool& pool,
                                    KeptRows* kept) = 0;
};

// Immutable, thread-safe.
class Selection {
 public:
  virtual ~Selection() = default;

  // As the recipe grammar has it: "snapkv".
  virtual std::string_view name() const = 0;
  // First row whose queries are observed in a segment of `tokens` tokens; `tokens` when none are.
  // In that case the kept rows depend on no query (such a selection may be shared whatever
  // follows); otherwise they depend on those of the segment's last rows.
  virtual int64_t FirstObserved(int64_t tokens) const = 0;
  // REQUIRES: tokens > 0. `model` must outlive the run.
  virtual std::unique_ptr<SelectionRun> Begin(const ModelShape& shape, const ModelAccess& model,
                                              int64_t tokens) const = 0;
};

}  // namespace cairn::selections
