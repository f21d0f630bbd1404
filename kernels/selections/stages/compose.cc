#include "kernels/selections/stages/compose.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/selections/budget.h"

namespace cairn::selections {
namespace {

class Composed final : public Selection {
 public:
  Composed(Stages stages, const kernels::SelectionKernels& kernels)
      : stages_(std::make_shared<const Stages>(std::move(stages))), kernels_(kernels) {}

  std::string_view name() const override { return stages_->name; }
  int64_t FirstObserved(int64_t tokens) const override {
    const Protected p = stages_->scorer->Protects(tokens, RowsToKeep(tokens, stages_->keep));
    if (stages_->keep >= kKeepUnits || tokens <= p.last) return tokens;
    return stages_->scorer->FirstObserved(tokens);
  }
  std::unique_ptr<SelectionRun> Begin(const ModelShape& shape, const ModelAccess& model,
                                      int64_t tokens) const override {
    return std::make_unique<Run>(stages_, kernels_, shape, model, tokens);
  }

 private:
  class Run final : public SelectionRun {
   public:
    Run(std::shared_ptr<const Stages> stages, const kernels::SelectionKernels& kernels,
        const ModelShape& shape, const ModelAccess& model, int64_t tokens)
        : owner_(std::move(stages)),
          stages_(*owner_),
          kernels_(kernels),
          shape_(shape),
          model_(model),
          scorer_(stages_.scorer->Begin(shape, tokens)) {}

    void Observe(const QueryRows& queries, const SegmentKv& kv,
                 kernels::ThreadPool& pool) override {
      if (!Leads(queries.layer)) return;
      scorer_->Observe(queries, {shape_, model_, kv, pool, kernels_, stream_});
    }

    bool Select(const SegmentKv& kv, kernels::ThreadPool& pool, KeptRows* kept) override {
      const int64_t tokens = kv.tokens, rows = RowsToKeep(tokens, stages_.keep);
      *kept = KeptRows(shape_.layers, shape_.kv_heads, tokens);
      Protected p = stages_.scorer->Protects(tokens, rows);
      p.first = kv.first_position == 0 ? std::max<int64_t>(p.first, stages_.sink ? 1 : 0) : 0;
      if (rows >= tokens || p.first + p.last >= tokens) {
        kept->KeepAll();
        return true;
      }
      const Segment segment{shape_, model_, kv, pool, kernels_, stream_};
      Scores scores(shape_.layers, shape_.kv_heads, tokens);
      Marks marks(shape_.layers, shape_.kv_heads, tokens);
      std::vector<double> weights(static_cast<size_t>(shape_.layers), 1.0);
      for (int32_t layer = 0; layer < shape_.layers; ++layer) {
        if (!Leads(layer)) continue;
        Protect(p, layer, &marks);
        const std::span<float> s = scores.Layer(layer);
        scorer_->Score(segment, {layer, stages_.keep, rows, s, marks.Layer(layer)});
        if (!segment.AllFinite(s.data(), static_cast<int64_t>(s.size()))) return false;
        weights[static_cast<size_t>(layer)] = scorer_->LayerWeight(layer);
      }
      std::vector<int64_t> layer_rows =
          stages_.layers({shape_.layers, tokens, stages_.keep, weights, &scores, &marks});
      for (int64_t& r : layer_rows) r = std::clamp(r, p.first + p.last, tokens);
      const std::vector<int64_t> head_rows =
          stages_.heads({scores, marks, layer_rows, kernels_, stream_});
      for (int32_t layer = 0; layer < shape_.layers; ++layer) {
        const PickQuestion question{layer, stages_.keep, layer_rows[static_cast<size_t>(layer)],
                                    head_rows.data() + layer * shape_.kv_heads,
                                    scores.Layer(layer)};
        if (Leads(layer) && !stages_.picker->Pick(segment, question, marks.Layer(layer))) {
          return false;
        }
        Keep(std::as_const(marks), layer - layer % stages_.reuse, layer, kept);
      }
      return true;
    }

   private:
    bool Leads(int32_t layer) const { return layer % stages_.reuse == 0; }

    void Protect(const Protected& p, int32_t layer, Marks* marks) const {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        const std::span<uint8_t> m = marks->Head(layer, head);
        std::fill(m.begin(), m.begin() + p.first, uint8_t{1});
        std::fill(m.end() - p.last, m.end(), uint8_t{1});
      }
    }

    void Keep(const Marks& marks, int32_t from, int32_t layer, KeptRows* kept) const {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        const std::span<const uint8_t> m = marks.Head(from, head);
        for (size_t row = 0; row < m.size(); ++row) {
          if (m[row] != 0) kept->Keep(layer, head, static_cast<int64_t>(row));
        }
      }
    }

    const std::shared_ptr<const Stages> owner_;
    const Stages& stages_;
    const kernels::SelectionKernels& kernels_;
    kernels::InlineStream stream_;
    const ModelShape shape_;
    const ModelAccess& model_;
    const std::unique_ptr<ScorerRun> scorer_;
  };

  const std::shared_ptr<const Stages> stages_;
  const kernels::SelectionKernels& kernels_;
};

}  // namespace

std::unique_ptr<Selection> Compose(Stages stages, const kernels::SelectionKernels& kernels) {
  return std::make_unique<Composed>(std::move(stages), kernels);
}

}  // namespace cairn::selections
