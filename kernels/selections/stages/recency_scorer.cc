// The scorer of methods that class whole heads: rows are ranked by recency alone.

#include <algorithm>

#include "kernels/selections/stages/scorers.h"

namespace cairn::selections {
namespace {

class Recency final : public Scorer {
 public:
  explicit Recency(int64_t sinks) : sinks_(sinks) {}

  int64_t FirstObserved(int64_t tokens) const override { return tokens; }
  Protected Protects(int64_t, int64_t rows) const override { return {std::min(sinks_, rows), 0}; }
  std::unique_ptr<ScorerRun> Begin(const ModelShape&, int64_t) const override {
    return std::make_unique<Run>();
  }

 private:
  class Run final : public UnobservedRun {
   public:
    void Score(const Segment& segment, const LayerScores& out) override {
      const auto tokens = static_cast<size_t>(segment.kv.tokens);
      // Exact: a segment has fewer than 2^24 rows.
      for (size_t i = 0; i < out.scores.size(); ++i) {
        out.scores[i] = static_cast<float>(i % tokens);
      }
    }
  };

  const int64_t sinks_;
};

}  // namespace

ScorerPtr RecencyScorer(int64_t sinks) { return std::make_unique<Recency>(sinks); }

}  // namespace cairn::selections
