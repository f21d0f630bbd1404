#include <vector>

#include "kernels/selections/stages/scorers.h"
#include "kernels/selections/stages/scratch.h"
#include "kernels/selections/stages/window.h"

namespace cairn::selections {
namespace {

class Accumulated final : public Scorer {
 public:
  explicit Accumulated(int64_t recent) : recent_(recent) {}

  int64_t FirstObserved(int64_t) const override { return 0; }
  Protected Protects(int64_t, int64_t rows) const override { return {0, rows * recent_ / 1000}; }
  std::unique_ptr<ScorerRun> Begin(const ModelShape& shape, int64_t tokens) const override {
    return std::make_unique<Run>(shape, tokens);
  }

 private:
  class Run final : public ScorerRun {
   public:
    Run(const ModelShape& shape, int64_t tokens)
        : tokens_(tokens), sums_(static_cast<size_t>(shape.layers * shape.query_heads * tokens)) {}

    void Observe(const QueryRows& queries, const Segment& segment) override {
      const ModelShape& shape = segment.shape;
      const int64_t end = queries.first_row + queries.rows;
      Scratch scratch(segment.pool.threads(), kernels::SelectionScratchBytes(shape.head_dim, 0),
                      kernels::kAccumulatedRows * kernels::RoundedTokens(end));
      segment.pool.ParallelFor(shape.query_heads, [&](int64_t head, int thread) {
        kernels::AccumulateAttentionArgs args;
        args.keys = {segment.kv.layers[static_cast<size_t>(queries.layer)], false,
                     head / shape.group(), 0, end};
        args.q = queries.q + head * shape.head_dim;
        args.q_stride = queries.stride;
        args.rows = queries.rows;
        args.first_row = queries.first_row;
        args.scale = AttentionScale(shape);
        args.sums = Sums(shape, queries.layer) + head * tokens_;
        args.weights = scratch.Numbers(thread);
        args.scratch = scratch.Bytes(thread);
        segment.kernels.accumulate_attention(segment.stream, args);
      });
    }

    void Score(const Segment& segment, const LayerScores& out) override {
      MeanOverGroups(segment, Sums(segment.shape, out.layer), tokens_, tokens_, out.scores);
    }

   private:
    float* Sums(const ModelShape& shape, int32_t layer) {
      return sums_.data() + int64_t{layer} * shape.query_heads * tokens_;
    }

    const int64_t tokens_;
    std::vector<float> sums_;  // [layers][query_heads][tokens]
  };

  const int64_t recent_;
};

}  // namespace

ScorerPtr AccumulatedScorer(int64_t recent) { return std::make_unique<Accumulated>(recent); }

}  // namespace cairn::selections
