#include "services/worker/methods/selections/segment_selection.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "cairn/kernels/weight_types.h"
#include "common/log/log.h"
#include "services/worker/compute/kv_view.h"

namespace cairn::worker {

namespace {

// Tokens of punctuation and line ends, spaces around them or not: those that SepLLM keeps (its
// section 3 names . , ? ! ; : and white space; single spaces begin most words here).
std::vector<int32_t> SeparatorsOf(const model::Tokenizer& tokenizer) {
  constexpr std::string_view kEnds = ".,?!;:\n\t";
  std::vector<int32_t> separators;
  for (model::TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    const bool ends = bytes.find_first_of(kEnds) != std::string_view::npos;
    const bool nothing_else = std::ranges::all_of(
        bytes, [&](char c) { return c == ' ' || kEnds.find(c) != std::string_view::npos; });
    if (ends && nothing_else && !tokenizer.IsControl(id)) separators.push_back(id);
  }
  return separators;
}

}  // namespace

SelectionModel::SelectionModel(const model::Model& model)
    : shape_{.layers = model.hp().layers,
             .query_heads = model.hp().heads,
             .kv_heads = model.hp().kv_heads,
             .head_dim = model.hp().head_dim,
             .hidden = model.hp().hidden,
             .rope_dim = model.hp().rope_dim,
             .rope_base = model.hp().rope_base},
      separators_(SeparatorsOf(model.tokenizer())) {
  access_.separators = separators_;
  access_.output_projection = [&model](int32_t layer, float* out) {
    const model::Tensor& o = model.layer(layer).o;
    std::vector<float> row(static_cast<size_t>(o.cols));
    for (int64_t r = 0; r < o.rows; ++r) {
      kernels::DequantiseRow(o.type, o.row(r), row.data(), o.cols);
      for (int64_t c = 0; c < o.cols; ++c) out[c * o.rows + r] = row[static_cast<size_t>(c)];
    }
  };
}

SegmentSelection::SegmentSelection(const selections::Selection& selection,
                                   const SelectionModel& model, const KvSequence& sequence,
                                   std::span<const model::TokenId> tokens, int64_t begin,
                                   kernels::ThreadPool& pool)
    : selection_(selection),
      model_(model),
      pool_(pool),
      first_observed_(selection.FirstObserved(std::ssize(tokens))),
      run_(selection.Begin(model.shape(), model.access(), std::ssize(tokens))) {
  for (int layer = 0; layer < model.shape().layers; ++layer) {
    layers_.push_back(PagesView(sequence, layer));
  }
  kv_ = {.tokens = std::ssize(tokens),
         .first_position = begin,
         .layers = layers_,
         .token_ids = tokens};
}

void SegmentSelection::Observe(const ChunkQueries& queries) {
  const int64_t row = queries.first_position - kv_.first_position;
  const int64_t begin = std::max(row, first_observed_);
  const int64_t end = std::min(row + queries.rows, kv_.tokens);
  if (begin >= end) return;
  run_->Observe({.layer = queries.layer,
                 .first_row = begin,
                 .rows = end - begin,
                 .q = queries.q + (begin - row) * queries.stride,
                 .stride = queries.stride},
                kv_, pool_);
}

selections::KeptRows SegmentSelection::Select(const std::string& trace) {
  const selections::ModelShape& shape = model_.shape();
  selections::KeptRows kept;
  if (!run_->Select(kv_, pool_, &kept)) {
    log::Warn("selection_kept_all",
              {{"selection", std::string(selection_.name())}, {"trace", trace}});
    kept = selections::KeptRows(shape.layers, shape.kv_heads, kv_.tokens);
    kept.KeepAll();
  }
  CAIRN_CHECK(kept.tokens() == kv_.tokens && kept.layers() == shape.layers &&
              kept.kv_heads() == shape.kv_heads);
  return kept;
}

}  // namespace cairn::worker
