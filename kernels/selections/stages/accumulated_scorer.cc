// Scorers that sum attention over all queries: H2O's, PrefixKV's and Keyformer's.

#include <algorithm>
#include <vector>

#include "kernels/selections/stages/random_numbers.h"
#include "kernels/selections/stages/scorers.h"
#include "kernels/selections/stages/scratch.h"
#include "kernels/selections/stages/window.h"

namespace cairn::selections {
namespace {

// Sums of each query head, [layers][query_heads][tokens], and the queries of heads in blocks of
// rows as kernels take them.
class SumsRun : public ScorerRun {
 public:
  SumsRun(const ModelShape& shape, int64_t tokens)
      : tokens_(tokens), sums_(static_cast<size_t>(shape.layers * shape.query_heads * tokens)) {}

  void Observe(const QueryRows& queries, const Segment& segment) final {
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
      Accumulate(segment, queries.layer, head, args);
    });
  }

  void Score(const Segment& segment, const LayerScores& out) override {
    MeanOverGroups(segment, Sums(segment.shape, out.layer), tokens_, tokens_, out.scores);
  }

 protected:
  // Called from the pool's threads, for different heads.
  virtual void Accumulate(const Segment& segment, int32_t /*layer*/, int64_t /*head*/,
                          const kernels::AccumulateAttentionArgs& args) {
    segment.kernels.accumulate_attention(segment.stream, args);
  }
  float* Sums(const ModelShape& shape, int32_t layer) {
    return sums_.data() + int64_t{layer} * shape.query_heads * tokens_;
  }

  const int64_t tokens_;

 private:
  std::vector<float> sums_;
};

class Accumulated final : public Scorer {
 public:
  explicit Accumulated(int64_t recent) : recent_(recent) {}

  int64_t FirstObserved(int64_t) const override { return 0; }
  Protected Protects(int64_t, int64_t rows) const override { return {0, rows * recent_ / 1000}; }
  std::unique_ptr<ScorerRun> Begin(const ModelShape& shape, int64_t tokens) const override {
    return std::make_unique<SumsRun>(shape, tokens);
  }

 private:
  const int64_t recent_;
};

class LayerSums final : public Scorer {
 public:
  explicit LayerSums(int64_t sinks) : sinks_(sinks) {}

  int64_t FirstObserved(int64_t) const override { return 0; }
  Protected Protects(int64_t, int64_t rows) const override { return {std::min(sinks_, rows), 1}; }
  std::unique_ptr<ScorerRun> Begin(const ModelShape& shape, int64_t tokens) const override {
    return std::make_unique<Run>(shape, tokens);
  }

 private:
  class Run final : public SumsRun {
   public:
    using SumsRun::SumsRun;

    void Score(const Segment& segment, const LayerScores& out) override {
      for (int32_t g = 0; g < segment.shape.kv_heads; ++g) {
        segment.kernels.reduce_rows(
            segment.stream,
            {kernels::Reduction::kMean, Sums(segment.shape, out.layer), segment.shape.query_heads,
             tokens_, tokens_, out.scores.data() + g * tokens_});
      }
    }
  };

  const int64_t sinks_;
};

class Noisy final : public Scorer {
 public:
  Noisy(int64_t recent, uint64_t seed) : recent_(recent), seed_(seed) {}

  int64_t FirstObserved(int64_t) const override { return 0; }
  Protected Protects(int64_t, int64_t rows) const override { return {0, rows * recent_ / 1000}; }
  std::unique_ptr<ScorerRun> Begin(const ModelShape& shape, int64_t tokens) const override {
    return std::make_unique<Run>(shape, tokens, seed_);
  }

 private:
  class Run final : public SumsRun {
   public:
    Run(const ModelShape& shape, int64_t tokens, uint64_t seed)
        : SumsRun(shape, tokens), seed_(seed) {}

   private:
    void Accumulate(const Segment& segment, int32_t layer, int64_t head,
                    const kernels::AccumulateAttentionArgs& args) override {
      const int64_t stride = kernels::RoundedTokens(args.keys.end);
      for (int64_t row = 0; row < args.rows; row += kernels::kAccumulatedRows) {
        const int64_t rows = std::min(kernels::kAccumulatedRows, args.rows - row);
        segment.kernels.window_attention(
            segment.stream, {args.keys, args.q + row * args.q_stride, args.q_stride, rows,
                             args.first_row + row, args.scale, args.weights, stride, args.scratch});
        for (int64_t r = 0; r < rows; ++r) {
          const int64_t own = args.first_row + row + r;
          AddNoisy(args.weights + r * stride, own + 1, SplitMix(seed_, {layer, head, own}),
                   args.sums);
        }
      }
    }

    // softmax(logit + noise) is softmax(logit) * exp(noise), normed again.
    static void AddNoisy(float* weights, int64_t n, SplitMix draw, float* sums) {
      const auto& noise = GumbelWeights();
      double sum = 0;
      uint64_t bits = 0;
      for (int64_t j = 0; j < n; ++j) {
        // Five draws of 12 bits from each number.
        bits = j % 5 == 0 ? draw.Next() : bits >> kGumbelBits;
        weights[j] *= noise[bits % noise.size()];
        sum += static_cast<double>(weights[j]);
      }
      const auto factor = static_cast<float>(1.0 / sum);
      for (int64_t j = 0; j < n; ++j) sums[j] += weights[j] * factor;
    }

    const uint64_t seed_;
  };

  const int64_t recent_;
  const uint64_t seed_;
};

}  // namespace

ScorerPtr AccumulatedScorer(int64_t recent) { return std::make_unique<Accumulated>(recent); }
ScorerPtr LayerSumsScorer(int64_t sinks) { return std::make_unique<LayerSums>(sinks); }
ScorerPtr NoisyScorer(int64_t recent, uint64_t seed) {
  return std::make_unique<Noisy>(recent, seed);
}

}  // namespace cairn::selections
