#include <vector>

#include "kernels/selections/stages/scorers.h"
#include "kernels/selections/stages/window.h"

namespace cairn::selections {
namespace {

class Window final : public AsksWindow {
 public:
  Window(int64_t window, int64_t reach, bool max_pool)
      : AsksWindow(window), reach_(reach), max_pool_(max_pool) {}

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
      std::vector<float> means(static_cast<size_t>(segment.shape.query_heads * ranked));
      std::vector<float> pooled(means.size());
      queries_.ForEachHead(segment, out.layer, [&](int64_t head, int, const float* weights) {
        float* mean = means.data() + head * ranked;
        segment.kernels.reduce_rows(segment.stream, {kernels::Reduction::kMean, weights,
                                                     queries_.rows(), ranked, tokens, mean});
        segment.kernels.pool(segment.stream, {mean, pooled.data() + head * ranked, ranked,
                                              scorer_.reach_, scorer_.max_pool_});
      });
      MeanOverGroups(segment, pooled.data(), ranked, ranked, out.scores);
    }

   private:
    const Window& scorer_;
    WindowQueries queries_;
  };

  const int64_t reach_;
  const bool max_pool_;
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

ScorerPtr WindowScorer(int64_t window, int64_t reach, bool max_pool) {
  return std::make_unique<Window>(window, reach, max_pool);
}
ScorerPtr LastQueryScorer() { return std::make_unique<LastQuery>(); }

}  // namespace cairn::selections
