// Scorers that also weigh layers: CAKE's and SimLayerKV's.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/selections/stages/scorers.h"
#include "kernels/selections/stages/window.h"

namespace cairn::selections {
namespace {

class Variance final : public AsksWindow {
 public:
  Variance(int64_t window, int64_t reach, int64_t gamma, double space, double time)
      : AsksWindow(window), reach_(reach), gamma_(gamma), space_(space), time_(time) {}

  std::unique_ptr<ScorerRun> Begin(const ModelShape& shape, int64_t tokens) const override {
    return std::make_unique<Run>(*this, shape, tokens);
  }

 private:
  class Run final : public ScorerRun {
   public:
    Run(const Variance& scorer, const ModelShape& shape, int64_t tokens)
        : reach_(scorer.reach_),
          gamma_(static_cast<float>(scorer.gamma_)),
          space_(scorer.space_),
          time_(scorer.time_),
          queries_(shape, tokens, scorer.window_),
          weights_(static_cast<size_t>(shape.layers)) {}

    void Observe(const QueryRows& queries, const Segment&) override { queries_.Take(queries); }

    void Score(const Segment& segment, const LayerScores& out) override {
      const kernels::SelectionKernels& k = segment.kernels;
      const int64_t tokens = segment.kv.tokens, ranked = tokens - queries_.rows();
      const auto heads = static_cast<size_t>(segment.shape.query_heads);
      std::vector<float> scores(heads * static_cast<size_t>(ranked)), pooled(scores.size());
      std::vector<double> entropy(heads), variance(heads);
      queries_.ForEachHead(segment, out.layer, [&](int64_t head, int, const float* weights) {
        float* score = scores.data() + head * ranked;
        float* other = pooled.data() + head * ranked;
        k.reduce_rows(segment.stream, {kernels::Reduction::kVariance, weights, queries_.rows(),
                                       ranked, tokens, other});
        k.reduce_rows(segment.stream,
                      {kernels::Reduction::kMean, weights, queries_.rows(), ranked, tokens, score});
        const auto at = static_cast<size_t>(head);
        variance[at] = std::accumulate(other, other + ranked, 0.0);
        for (int64_t t = 0; t < ranked; ++t) score[t] += gamma_ * other[t];
        for (int64_t r = 0; r < queries_.rows(); ++r) {
          float row = 0;
          k.entropy(segment.stream, {weights + r * tokens, ranked, &row});
          entropy[at] += static_cast<double>(row);
        }
        k.pool(segment.stream, {score, other, ranked, reach_, false});
      });
      MeanOverGroups(segment, pooled.data(), ranked, ranked, out.scores);
      weights_[static_cast<size_t>(out.layer)] =
          std::pow(std::max(0.0, Sum(entropy)), 1 / space_) * std::pow(Sum(variance), 1 / time_);
    }

    double LayerWeight(int32_t layer) const override {
      return weights_[static_cast<size_t>(layer)];
    }

   private:
    static double Sum(const std::vector<double>& x) {
      return std::accumulate(x.begin(), x.end(), 0.0);
    }

    const int64_t reach_;
    const float gamma_;
    const double space_;
    const double time_;
    WindowQueries queries_;
    std::vector<double> weights_;
  };

  const int64_t reach_;
  const int64_t gamma_;
  const double space_;
  const double time_;
};

class Laziness final : public Scorer {
 public:
  Laziness(int64_t sinks, int64_t recent, int64_t queries)
      : sinks_(sinks), recent_(recent), asked_(queries) {}

  int64_t FirstObserved(int64_t tokens) const override {
    return std::max<int64_t>(0, tokens - asked_);
  }
  Protected Protects(int64_t, int64_t) const override { return {sinks_, 0}; }
  std::unique_ptr<ScorerRun> Begin(const ModelShape& shape, int64_t tokens) const override {
    return std::make_unique<Run>(*this, shape, tokens);
  }

 private:
  class Run final : public ScorerRun {
   public:
    Run(const Laziness& scorer, const ModelShape& shape, int64_t tokens)
        : sinks_(scorer.sinks_),
          recent_(scorer.recent_),
          queries_(shape, tokens, scorer.asked_),
          weights_(static_cast<size_t>(shape.layers)) {}

    void Observe(const QueryRows& queries, const Segment&) override { queries_.Take(queries); }

    void Score(const Segment& segment, const LayerScores& out) override {
      const int64_t tokens = segment.kv.tokens;
      const int64_t sinks = segment.kv.first_position == 0 ? std::min(sinks_, tokens) : 0;
      std::vector<double> mass(static_cast<size_t>(segment.shape.query_heads));
      queries_.ForEachHead(segment, out.layer, [&](int64_t head, int, const float* weights) {
        for (int64_t r = 0; r < queries_.rows(); ++r) {
          const float* row = weights + r * tokens;
          // A query's own row is in neither part, as in the authors' program.
          const int64_t own = queries_.first_row() + r;
          const int64_t recent = std::min(own, std::max(sinks, own - recent_));
          mass[static_cast<size_t>(head)] += std::accumulate(row, row + sinks, 0.0) +
                                             std::accumulate(row + recent, row + own, 0.0);
        }
      });
      const double sum = std::accumulate(mass.begin(), mass.end(), 0.0);
      weights_[static_cast<size_t>(out.layer)] = sum;
      for (size_t i = 0; i < out.scores.size(); ++i) {
        const auto row = static_cast<float>(i % static_cast<size_t>(tokens));
        // Recency; a mass that is not a number makes the segment refused.
        out.scores[i] = row + static_cast<float>(sum - sum);
      }
    }

    double LayerWeight(int32_t layer) const override {
      return weights_[static_cast<size_t>(layer)];
    }

   private:
    const int64_t sinks_;
    const int64_t recent_;
    WindowQueries queries_;
    std::vector<double> weights_;
  };

  const int64_t sinks_;
  const int64_t recent_;
  const int64_t asked_;
};

}  // namespace

ScorerPtr VarianceScorer(int64_t window, int64_t reach, int64_t gamma, int64_t space_tenths,
                         int64_t time_tenths) {
  return std::make_unique<Variance>(window, reach, gamma, static_cast<double>(space_tenths) / 10,
                                    static_cast<double>(time_tenths) / 10);
}
ScorerPtr LazinessScorer(int64_t sinks, int64_t recent, int64_t queries) {
  return std::make_unique<Laziness>(sinks, recent, queries);
}

}  // namespace cairn::selections
