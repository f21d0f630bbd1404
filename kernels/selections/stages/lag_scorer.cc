#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/selections/stages/scorers.h"
#include "kernels/selections/stages/scratch.h"

namespace cairn::selections {
namespace {

// Rows before the first block; blocks begin with the sequence's sinks only where it begins.
int64_t Sinks(const SegmentKv& kv, int64_t sinks) { return kv.first_position == 0 ? sinks : 0; }

class Lag final : public Scorer {
 public:
  Lag(int64_t sinks, int64_t lag) : sinks_(sinks), lag_(lag) {}

  int64_t FirstObserved(int64_t tokens) const override { return tokens; }
  Protected Protects(int64_t, int64_t) const override { return {sinks_, 0}; }
  std::unique_ptr<ScorerRun> Begin(const ModelShape&, int64_t) const override {
    return std::make_unique<Run>(sinks_, lag_);
  }

 private:
  class Run final : public UnobservedRun {
   public:
    Run(int64_t sinks, int64_t lag) : sinks_(sinks), lag_(lag) {}

    void Score(const Segment& segment, const LayerScores& out) override {
      const int64_t tokens = segment.kv.tokens, first = Sinks(segment.kv, sinks_);
      const int32_t heads = segment.shape.kv_heads;
      if (tokens < first + 2 * lag_) {
        for (int64_t i = 0; i < heads * tokens; ++i) {
          out.scores[static_cast<size_t>(i)] = static_cast<float>(i % tokens);
        }
        return;
      }
      // The last block has no next one: it stays, with the rows behind it.
      const int64_t blocks = (tokens - first) / lag_ - 1;
      for (int32_t head = 0; head < heads; ++head) {
        uint8_t* marks = out.marks.data() + head * tokens;
        std::fill(marks + first + blocks * lag_, marks + tokens, uint8_t{1});
      }
      const auto lag = static_cast<size_t>(lag_);
      Scratch scratch(
          segment.pool.threads(),
          kernels::SelectionScratchBytes(segment.shape.head_dim, kernels::kLagScratchRows),
          2 * lag_);
      segment.pool.ParallelFor(heads * blocks, [&](int64_t piece, int thread) {
        const int64_t head = piece / blocks, begin = first + piece % blocks * lag_;
        float* parts[] = {scratch.Numbers(thread), scratch.Numbers(thread) + lag};
        for (const bool values : {false, true}) {
          const kernels::PagedKv& kv = segment.kv.layers[static_cast<size_t>(out.layer)];
          segment.kernels.lag_scores(segment.stream,
                                     {{kv, values, head, begin, begin + lag_},
                                      {kv, values, head, begin + lag_, begin + 2 * lag_},
                                      parts[values ? 1 : 0],
                                      scratch.Bytes(thread)});
        }
        float* score = out.scores.data() + head * tokens + begin;
        for (size_t i = 0; i < lag; ++i) score[i] = (parts[0][i] + parts[1][i]) * 0.5f;
        RankInBlock(segment, score);
      });
    }

   private:
    // Replaces the scores of a block by their ranks, the smallest 0; of equal ones the first is
    // smaller.
    void RankInBlock(const Segment& segment, float* score) const {
      if (!segment.AllFinite(score, lag_)) return;
      std::vector<size_t> order(static_cast<size_t>(lag_));
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(),
                       [&](size_t a, size_t b) { return score[a] < score[b]; });
      for (size_t rank = 0; rank < order.size(); ++rank) {
        score[order[rank]] = static_cast<float>(rank);
      }
    }

    const int64_t sinks_;
    const int64_t lag_;
  };

  const int64_t sinks_;
  const int64_t lag_;
};

}  // namespace

ScorerPtr LagScorer(int64_t sinks, int64_t lag) { return std::make_unique<Lag>(sinks, lag); }

}  // namespace cairn::selections
