#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/selections/stages/scorers.h"
#include "kernels/selections/stages/scratch.h"
#include "kernels/selections/stages/window.h"

namespace cairn::selections {
namespace {

// The mean rotation over a run of positions: per pair of channels (c, s) with
// x' = c x - s y, y' = s x + c y. Not a rotation itself.
struct MeanTurn {
  std::vector<float> cosine, sine;

  MeanTurn(const ModelShape& shape, int64_t first, int64_t count) {
    for (int32_t p = 0; p < shape.rope_dim / 2; ++p) {
      const double frequency = std::pow(shape.rope_base, -2.0 * p / shape.rope_dim);
      double c = 0, s = 0;
      for (int64_t i = first; i < first + count; ++i) {
        c += std::cos(static_cast<double>(i) * frequency);
        s += std::sin(static_cast<double>(i) * frequency);
      }
      cosine.push_back(static_cast<float>(c / static_cast<double>(count)));
      sine.push_back(static_cast<float>(s / static_cast<double>(count)));
    }
  }

  // Turns numbers x[0], x[stride], ... of one head.
  void Apply(float* x, int64_t stride) const {
    const auto half = static_cast<int64_t>(cosine.size());
    for (int64_t p = 0; p < half; ++p) {
      float& low = x[p * stride];
      float& high = x[(half + p) * stride];
      const float c = cosine[static_cast<size_t>(p)], s = sine[static_cast<size_t>(p)];
      const float turned = c * low - s * high;
      high = s * low + c * high;
      low = turned;
    }
  }
};

// The first queries, of the sequence's sinks, are unlike all others.
constexpr int64_t kSkippedQueries = 4;

class Expected final : public Scorer {
 public:
  Expected(int64_t sinks, int64_t future, float epsilon)
      : sinks_(sinks), future_(future), epsilon_(epsilon) {}

  int64_t FirstObserved(int64_t) const override { return 0; }
  Protected Protects(int64_t, int64_t) const override { return {sinks_, 0}; }
  std::unique_ptr<ScorerRun> Begin(const ModelShape& shape, int64_t) const override {
    return std::make_unique<Run>(*this, shape);
  }

 private:
  class Run final : public ScorerRun {
   public:
    Run(const Expected& scorer, const ModelShape& shape)
        : sinks_(scorer.sinks_),
          future_(scorer.future_),
          epsilon_(scorer.epsilon_),
          dim_(shape.head_dim),
          padded_((dim_ + 15) / 16 * 16),
          moments_(
              static_cast<size_t>(shape.layers * shape.query_heads * padded_ * (padded_ + 1))) {}

    void Observe(const QueryRows& queries, const Segment& segment) override {
      const ModelShape& shape = segment.shape;
      const int64_t skipped = segment.kv.first_position == 0 ? kSkippedQueries : 0;
      const int64_t from = std::max<int64_t>(0, skipped - queries.first_row);
      const int64_t rows = queries.rows - from;
      if (rows <= 0) return;
      const int64_t half = shape.rope_dim / 2;
      std::vector<float> cosine(static_cast<size_t>(rows * half)), sine(cosine.size());
      for (int64_t p = 0; p < half; ++p) {
        const double frequency =
            std::pow(shape.rope_base, -2.0 * static_cast<double>(p) / shape.rope_dim);
        for (int64_t r = 0; r < rows; ++r) {
          const auto position =
              static_cast<double>(segment.kv.first_position + queries.first_row + from + r);
          cosine[static_cast<size_t>(r * half + p)] =
              static_cast<float>(std::cos(position * frequency));
          sine[static_cast<size_t>(r * half + p)] =
              static_cast<float>(std::sin(position * frequency));
        }
      }
      Scratch scratch(segment.pool.threads(), 0, rows * padded_);
      segment.pool.ParallelFor(shape.query_heads, [&](int64_t head, int thread) {
        float* plain = scratch.Numbers(thread);
        std::fill(plain, plain + rows * padded_, 0.0f);
        for (int64_t r = 0; r < rows; ++r) {
          const float* q = queries.q + (from + r) * queries.stride + head * dim_;
          float* out = plain + r * padded_;
          std::copy(q, q + dim_, out);
          for (int64_t p = 0; p < half; ++p) {  // Turned back by its position.
            const float c = cosine[static_cast<size_t>(r * half + p)];
            const float s = sine[static_cast<size_t>(r * half + p)];
            out[p] = q[p] * c + q[half + p] * s;
            out[half + p] = q[half + p] * c - q[p] * s;
          }
        }
        float* sum = Moments(shape, queries.layer, head);
        segment.kernels.query_moments(segment.stream,
                                      {plain, padded_, rows, padded_, sum, sum + padded_});
      });
    }

    void Score(const Segment& segment, const LayerScores& out) override {
      const ModelShape& shape = segment.shape;
      const int64_t tokens = segment.kv.tokens;
      const bool begins = segment.kv.first_position == 0;
      const int64_t queries = std::max<int64_t>(1, tokens - (begins ? kSkippedQueries : 0));
      const int64_t first = begins ? std::min(sinks_, tokens) : 0;
      const MeanTurn turn(shape, segment.kv.first_position + tokens, future_);
      const kernels::PagedKv& kv = segment.kv.layers[static_cast<size_t>(out.layer)];
      std::vector<float> heads(static_cast<size_t>(shape.query_heads * tokens));
      Scratch scratch(segment.pool.threads(), kernels::SelectionScratchBytes(dim_, dim_),
                      std::max(dim_ * (dim_ + 1), tokens));
      segment.pool.ParallelFor(shape.query_heads, [&](int64_t head, int thread) {
        float* mean = scratch.Numbers(thread);
        float* covariance = mean + dim_;
        Distribution(Moments(shape, out.layer, head), static_cast<float>(queries), turn, mean,
                     covariance);
        float* logits = heads.data() + head * tokens;
        segment.kernels.expected_logits(segment.stream,
                                        {{kv, false, head / shape.group(), first, tokens},
                                         mean,
                                         covariance,
                                         AttentionScale(shape),
                                         logits + first,
                                         scratch.Bytes(thread)});
        segment.kernels.softmax(segment.stream, {logits + first, tokens - first});
      });
      MeanOverGroups(segment, heads.data(), tokens, tokens, out.scores);
      segment.pool.ParallelFor(shape.kv_heads, [&](int64_t head, int thread) {
        float* norms = scratch.Numbers(thread);
        segment.kernels.row_norms(segment.stream,
                                  {{kv, true, head, 0, tokens}, norms, scratch.Bytes(thread)});
        float* score = out.scores.data() + head * tokens;
        for (int64_t t = 0; t < tokens; ++t) score[t] = (score[t] + epsilon_) * norms[t];
      });
    }

   private:
    float* Moments(const ModelShape& shape, int64_t layer, int64_t head) {
      return moments_.data() + (layer * shape.query_heads + head) * padded_ * (padded_ + 1);
    }

    // Mean and covariance of a head's queries at the positions to come.
    void Distribution(const float* moments, float n, const MeanTurn& turn, float* mean,
                      float* covariance) const {
      const float* products = moments + padded_;
      for (int64_t i = 0; i < dim_; ++i) mean[i] = moments[i] / n;
      for (int64_t i = 0; i < dim_; ++i) {
        for (int64_t j = 0; j < dim_; ++j) {
          covariance[i * dim_ + j] = products[i * padded_ + j] / n - mean[i] * mean[j];
        }
      }
      turn.Apply(mean, 1);
      for (int64_t i = 0; i < dim_; ++i) turn.Apply(covariance + i * dim_, 1);
      for (int64_t j = 0; j < dim_; ++j) turn.Apply(covariance + j, dim_);
    }

    const int64_t sinks_;
    const int64_t future_;
    const float epsilon_;
    const int64_t dim_;
    const int64_t padded_;
    std::vector<float> moments_;  // [layers][query_heads]: sum [padded], products [padded][padded]
  };

  const int64_t sinks_;
  const int64_t future_;
  const float epsilon_;
};

}  // namespace

ScorerPtr ExpectedScorer(int64_t sinks, int64_t future, float epsilon) {
  return std::make_unique<Expected>(sinks, future, epsilon);
}

}  // namespace cairn::selections
