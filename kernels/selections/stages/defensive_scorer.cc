#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/selections/budget.h"
#include "kernels/selections/stages/projected_norm.h"
#include "kernels/selections/stages/scorers.h"
#include "kernels/selections/stages/window.h"

namespace cairn::selections {
namespace {

class Defensive final : public AsksWindow {
 public:
  Defensive(int64_t window, int64_t reach, int64_t mass, bool relative)
      : AsksWindow(window), reach_(reach), mass_(mass), relative_(relative) {}

  std::unique_ptr<ScorerRun> Begin(const ModelShape& shape, int64_t tokens) const override {
    return std::make_unique<Run>(*this, shape, tokens);
  }

 private:
  class Run final : public ScorerRun {
   public:
    Run(const Defensive& scorer, const ModelShape& shape, int64_t tokens)
        : reach_(scorer.reach_),
          mass_(static_cast<double>(scorer.mass_) / 1000),
          relative_(scorer.relative_),
          queries_(shape, tokens, scorer.window_) {}

    void Observe(const QueryRows& queries, const Segment&) override { queries_.Take(queries); }

    void Score(const Segment& segment, const LayerScores& out) override {
      const ModelShape& shape = segment.shape;
      const kernels::SelectionKernels& k = segment.kernels;
      const int64_t tokens = segment.kv.tokens, ranked = tokens - queries_.rows();
      const int64_t heads = shape.query_heads;
      std::vector<float> worst(static_cast<size_t>(heads * ranked)), means(worst.size());
      std::vector<double> near(static_cast<size_t>(heads));
      Scratch pooled(segment.pool.threads(), 0, queries_.rows() * ranked);
      queries_.ForEachHead(segment, out.layer, [&](int64_t head, int thread, const float* weights) {
        k.reduce_rows(segment.stream, {kernels::Reduction::kMean, weights, queries_.rows(), ranked,
                                       tokens, means.data() + head * ranked});
        for (int64_t r = 0; r < queries_.rows(); ++r) {
          const float* row = weights + r * tokens;
          PoolKeepingSum(segment, row, ranked, pooled.Numbers(thread) + r * ranked);
          near[static_cast<size_t>(head)] += std::accumulate(
              row + std::max<int64_t>(0, ranked - queries_.rows()), row + ranked, 0.0);
        }
        k.reduce_rows(segment.stream,
                      {kernels::Reduction::kMax, pooled.Numbers(thread), queries_.rows(), ranked,
                       ranked, worst.data() + head * ranked});
      });
      std::vector<float> norms(out.scores.size());
      ProjectedNorms(segment, out.layer, norms);
      if (!segment.AllFinite(norms.data(), static_cast<int64_t>(norms.size()))) {
        out.scores[0] = NAN;  // The segment is refused.
        return;
      }
      std::vector<float> total(static_cast<size_t>(tokens));
      for (size_t i = 0; i < norms.size(); ++i) total[i % total.size()] += norms[i];
      std::vector<float> mean(out.scores.size());
      MeanOverGroups(segment, means.data(), ranked, ranked, mean);
      const double share = std::accumulate(near.begin(), near.end(), 0.0) /
                           static_cast<double>(heads * queries_.rows());
      for (int32_t g = 0; g < shape.kv_heads; ++g) {
        float* score = out.scores.data() + g * tokens;
        k.reduce_rows(segment.stream,
                      {kernels::Reduction::kMax, worst.data() + g * shape.group() * ranked,
                       shape.group(), ranked, ranked, score});
        if (!segment.AllFinite(score, ranked)) return;
        const float prior = Mean(score, ranked);
        for (int64_t t = 0; t < ranked; ++t) {
          const float norm = norms[static_cast<size_t>(g * tokens + t)];
          const float all = total[static_cast<size_t>(t)];
          score[t] = std::max(score[t], prior) * (all > 0.0f ? norm / all : 0.0f);
        }
        uint8_t* marks = out.marks.data() + g * tokens;
        if (relative_) {
          MarkShare(mean.data() + g * tokens, ranked, mass_ - share,
                    ranked * out.keep / kKeepUnits - queries_.rows(), marks);
        } else {
          MarkMass(mean.data() + g * tokens, ranked, out.rows_to_keep - queries_.rows(), marks);
        }
      }
    }

   private:
    static float Mean(const float* x, int64_t n) {
      return static_cast<float>(std::accumulate(x, x + n, 0.0) / static_cast<double>(n));
    }

    // Pooling loses what lies at the edges: scaled so that the row has the sum that it had.
    void PoolKeepingSum(const Segment& segment, const float* weights, int64_t n, float* out) const {
      segment.kernels.pool(segment.stream, {weights, out, n, reach_, false});
      const double before = std::accumulate(weights, weights + n, 0.0);
      const double after = std::accumulate(out, out + n, 0.0);
      const auto factor = static_cast<float>(after > 0 ? before / after : 0.0);
      for (int64_t t = 0; t < n; ++t) out[t] *= factor;
    }

    // Marks the rows of most attention before the one with which their sum, and that of the window,
    // reaches the mass; no more than leaves `most` marks on them.
    void MarkMass(const float* mean, int64_t n, int64_t most, uint8_t* marks) const {
      const double outside = std::accumulate(mean, mean + n, 0.0);
      MarkUntil(mean, n, mass_ - (1.0 - outside), most, marks);
    }

    // The authors' program: of the attention to ranked rows, up to the goal. Its share of the
    // window, of which there is one for a layer, is that of the last ranked rows: the program has
    // cut the window away when it looks.
    void MarkShare(const float* mean, int64_t n, double goal, int64_t most, uint8_t* marks) const {
      const double outside = std::accumulate(mean, mean + n, 0.0);
      if (outside > 0) MarkUntil(mean, n, goal * outside, most, marks);
    }

    // Marks the rows of most attention before the one with which their sum reaches the goal.
    static void MarkUntil(const float* mean, int64_t n, double goal, int64_t most, uint8_t* marks) {
      std::vector<int32_t> order(static_cast<size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t a, int32_t b) { return mean[a] > mean[b]; });
      double sum = 0;
      int64_t left = most - std::accumulate(marks, marks + n, int64_t{0});
      for (const int32_t row : order) {
        sum += static_cast<double>(mean[row]);
        if (sum >= goal || left <= 0) return;
        left -= marks[row] != 0 ? 0 : 1;
        marks[row] = 1;
      }
    }

    const int64_t reach_;
    const double mass_;
    const bool relative_;
    WindowQueries queries_;
  };

  const int64_t reach_;
  const int64_t mass_;
  const bool relative_;
};

}  // namespace

ScorerPtr DefensiveScorer(int64_t window, int64_t reach, int64_t mass, bool relative) {
  return std::make_unique<Defensive>(window, reach, mass, relative);
}

}  // namespace cairn::selections
