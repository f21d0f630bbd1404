#include <vector>

#include "kernels/selections/stages/scorers.h"
#include "kernels/selections/stages/window.h"

namespace cairn::selections {
namespace {

class Window final : public AsksWindow {
 public:
  Window(int64_t window, int64_t reach, Pooling pooling)
      : AsksWindow(window), reach_(reach), pooling_(pooling) {}

  std::unique_ptr<ScorerRun> Begin(const ModelShape& shape, int64_t tokens) const override {
    return std::make_unique<Run>(*this, shape, tokens);
  }

 private:
  class Run final : public ScorerRun {
   public:
    Run(const Window& scorer, const ModelShape& shape, int64_t tokens)
        : scorer_(scorer), queries_(shape, tokens, scorer.window_) {}

    void Observe(const QueryRows& queries, const Segment&) override { queries_.Take(queries); }

    void Score(const Segment& segment, const LayerScores& out) override {
      const int64_t tokens = segment.kv.tokens, ranked = tokens - queries_.rows();
      const bool early = scorer_.pooling_ != Pooling::kMaxOfGroup;
      std::vector<float> means(static_cast<size_t>(segment.shape.query_heads * ranked));
      std::vector<float> pooled(means.size());
      queries_.ForEachHead(segment, out.layer, [&](int64_t head, int, const float* weights) {
        float* mean = means.data() + head * ranked;
        segment.kernels.reduce_rows(segment.stream, {kernels::Reduction::kMean, weights,
                                                     queries_.rows(), ranked, tokens, mean});
        if (early) Pool(segment, mean, ranked, pooled.data() + head * ranked);
      });
      MeanOverGroups(segment, early ? pooled.data() : means.data(), ranked, ranked, out.scores);
      if (early) return;
      for (int32_t g = 0; g < segment.shape.kv_heads; ++g) {
        float* score = out.scores.data() + g * tokens;
        std::copy(score, score + ranked, means.data());
        Pool(segment, means.data(), ranked, score);
      }
    }

   private:
    void Pool(const Segment& segment, const float* x, int64_t n, float* y) const {
      segment.kernels.pool(segment.stream,
                           {x, y, n, scorer_.reach_, scorer_.pooling_ != Pooling::kMean});
    }

    const Window& scorer_;
    WindowQueries queries_;
  };

  const int64_t reach_;
  const Pooling pooling_;
};

class LastQuery final : public Scorer {
 public:
  int64_t FirstObserved(int64_t tokens) const override { return tokens - 1; }
  Protected Protects(int64_t, int64_t) const override { return {0, 1}; }
  std::unique_ptr<ScorerRun> Begin(const ModelShape& shape, int64_t tokens) const override {
    return std::make_unique<Run>(shape, tokens);
  }

 private:
  class Run final : public ScorerRun {
   public:
    Run(const ModelShape& shape, int64_t tokens) : queries_(shape, tokens, 1) {}

    void Observe(const QueryRows& queries, const Segment&) override { queries_.Take(queries); }

    void Score(const Segment& segment, const LayerScores& out) override {
      const int64_t tokens = segment.kv.tokens, heads = segment.shape.query_heads;
      std::vector<float> all(static_cast<size_t>(heads * tokens));
      queries_.ForEachHead(segment, out.layer, [&](int64_t head, int, const float* weights) {
        std::copy(weights, weights + tokens, all.data() + head * tokens);
      });
      for (int32_t g = 0; g < segment.shape.kv_heads; ++g) {
        segment.kernels.reduce_rows(segment.stream,
                                    {kernels::Reduction::kMean, all.data(), heads, tokens, tokens,
                                     out.scores.data() + g * tokens});
      }
    }

   private:
    WindowQueries queries_;
  };
};

}  // namespace

ScorerPtr WindowScorer(int64_t window, int64_t reach, Pooling pooling) {
  return std::make_unique<Window>(window, reach, pooling);
}
ScorerPtr LastQueryScorer() { return std::make_unique<LastQuery>(); }

}  // namespace cairn::selections
