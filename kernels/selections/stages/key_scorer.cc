// Scorers that read keys alone: Knorm and KeyDiff.

#include <algorithm>

#include "kernels/selections/stages/scorers.h"
#include "kernels/selections/stages/scratch.h"

namespace cairn::selections {
namespace {

class Keys final : public Scorer {
 public:
  explicit Keys(bool difference) : difference_(difference) {}

  int64_t FirstObserved(int64_t tokens) const override { return tokens; }
  Protected Protects(int64_t, int64_t) const override { return {}; }
  std::unique_ptr<ScorerRun> Begin(const ModelShape&, int64_t) const override {
    return std::make_unique<Run>(difference_);
  }

 private:
  class Run final : public UnobservedRun {
   public:
    explicit Run(bool difference) : difference_(difference) {}

    void Score(const Segment& segment, const LayerScores& out) override {
      const int64_t tokens = segment.kv.tokens, dim = segment.shape.head_dim;
      const kernels::SelectionKernels& k = segment.kernels;
      Scratch scratch(segment.pool.threads(), kernels::SelectionScratchBytes(dim, 0),
                      difference_ ? tokens + dim : 0);
      segment.pool.ParallelFor(segment.shape.kv_heads, [&](int64_t head, int thread) {
        const kernels::TokenRows keys{segment.kv.layers[static_cast<size_t>(out.layer)], false,
                                      head, 0, tokens};
        float* score = out.scores.data() + head * tokens;
        if (difference_) {
          float* anchor = scratch.Numbers(thread);
          float* norms = anchor + dim;
          std::fill(anchor, anchor + dim, 0.0f);
          k.row_norms(segment.stream, {keys, norms, scratch.Bytes(thread)});
          k.sum_unit_rows(segment.stream, {keys, norms, anchor});
          // The sum has the direction of the mean.
          k.cosines(segment.stream, {keys, norms, anchor, score, scratch.Bytes(thread)});
        } else {
          k.row_norms(segment.stream, {keys, score, scratch.Bytes(thread)});
        }
        for (int64_t t = 0; t < tokens; ++t) score[t] = -score[t];
      });
    }

   private:
    const bool difference_;
  };

  const bool difference_;
};

}  // namespace

ScorerPtr KeyNormScorer() { return std::make_unique<Keys>(false); }
ScorerPtr KeyDifferenceScorer() { return std::make_unique<Keys>(true); }

}  // namespace cairn::selections
