#include "kernels/selections/stages/pickers.h"

#include <algorithm>
#include <numeric>

#include "kernels/selections/budget.h"
#include "kernels/selections/stages/budgets.h"
#include "kernels/selections/stages/projected_norm.h"
#include "kernels/selections/stages/random_numbers.h"

namespace cairn::selections {
namespace {

int64_t Marked(const uint8_t* marks, int64_t n) {
  return std::accumulate(marks, marks + n, int64_t{0});
}

class Tokens final : public Picker {
 public:
  bool Pick(const Segment& segment, const PickQuestion& q,
            std::span<uint8_t> marks) const override {
    const int64_t tokens = segment.kv.tokens;
    for (int32_t head = 0; head < segment.shape.kv_heads; ++head) {
      uint8_t* m = marks.data() + head * tokens;
      segment.kernels.mark_top(segment.stream, {q.scores.data() + head * tokens, tokens,
                                                q.head_rows[head] - Marked(m, tokens), m});
    }
    return true;
  }
};

class Chunks final : public Picker {
 public:
  Chunks(int64_t chunk, int64_t chunked) : chunk_(chunk), chunked_(chunked) {}

  bool Pick(const Segment& segment, const PickQuestion& q,
            std::span<uint8_t> marks) const override {
    const int64_t tokens = segment.kv.tokens, heads = segment.shape.kv_heads;
    const bool single = int64_t{q.layer} * 1000 >= chunked_ * segment.shape.layers;
    if (tokens < chunk_ || single) return Tokens().Pick(segment, q, marks);
    std::vector<float> mean(static_cast<size_t>(tokens));
    segment.kernels.reduce_rows(segment.stream, {kernels::Reduction::kMean, q.scores.data(), heads,
                                                 tokens, tokens, mean.data()});
    const int64_t chunks = (tokens + chunk_ - 1) / chunk_;
    std::vector<float> scores(static_cast<size_t>(chunks));
    segment.kernels.chunk_means(segment.stream, {mean.data(), tokens, chunk_, scores.data()});
    std::vector<uint8_t> taken(static_cast<size_t>(chunks));
    for (int64_t i = 0; i < heads * tokens; ++i) {
      if (marks[static_cast<size_t>(i)] != 0) taken[static_cast<size_t>(i % tokens / chunk_)] = 1;
    }
    const int64_t count = std::max<int64_t>(1, chunks * q.keep / kKeepUnits);
    segment.kernels.mark_top(segment.stream, {scores.data(), chunks,
                                              count - Marked(taken.data(), chunks), taken.data()});
    for (int64_t i = 0; i < heads * tokens; ++i) {
      marks[static_cast<size_t>(i)] |= taken[static_cast<size_t>(i % tokens / chunk_)];
    }
    return true;
  }

 private:
  const int64_t chunk_;
  const int64_t chunked_;
};

class TwoStages final : public Picker {
 public:
  TwoStages(int64_t first, int64_t alpha) : first_(first), alpha_(alpha) {}

  bool Pick(const Segment& segment, const PickQuestion& q,
            std::span<uint8_t> marks) const override {
    const int64_t tokens = segment.kv.tokens;
    std::vector<float> scores(q.scores.size());
    ProjectedNorms(segment, q.layer, scores);
    for (size_t i = 0; i < scores.size(); ++i) scores[i] *= q.scores[i] + 1e-4f;
    const auto n = static_cast<int64_t>(scores.size());
    if (!segment.AllFinite(scores.data(), n)) return false;
    for (int32_t head = 0; head < segment.shape.kv_heads; ++head) {
      uint8_t* m = marks.data() + head * tokens;
      const int64_t rows = q.head_rows[head];
      const int64_t safe =
          std::max({int64_t{first_ > 0 ? 1 : 0}, rows * first_ / 1000, SafeRows(q.rows, alpha_)});
      const int64_t first = std::min(rows, safe);
      segment.kernels.mark_top(
          segment.stream, {q.scores.data() + head * tokens, tokens, first - Marked(m, tokens), m});
      segment.kernels.mark_top(
          segment.stream, {scores.data() + head * tokens, tokens, rows - Marked(m, tokens), m});
    }
    return true;
  }

 private:
  const int64_t first_;
  const int64_t alpha_;
};

class Lottery final : public Picker {
 public:
  Lottery(int64_t lot, int64_t factor, uint64_t seed) : lot_(lot), factor_(factor), seed_(seed) {}

  bool Pick(const Segment& segment, const PickQuestion& q,
            std::span<uint8_t> marks) const override {
    const int64_t tokens = segment.kv.tokens;
    std::vector<float> drawn(static_cast<size_t>(tokens));
    for (int32_t head = 0; head < segment.shape.kv_heads; ++head) {
      const float* scores = q.scores.data() + head * tokens;
      uint8_t* m = marks.data() + head * tokens;
      const int64_t rows = q.head_rows[head] - Marked(m, tokens);
      segment.kernels.mark_top(segment.stream, {scores, tokens, rows - rows * lot_ / 1000, m});
      // The best of score + Gumbel noise are a draw without replacement by softmax(score).
      SplitMix draw(seed_, {q.layer, head});
      for (int64_t t = 0; t < tokens; ++t) {
        const double score = static_cast<double>(scores[t]) * static_cast<double>(factor_);
        drawn[static_cast<size_t>(t)] = static_cast<float>(score + Gumbel(&draw));
      }
      segment.kernels.mark_top(segment.stream,
                               {drawn.data(), tokens, q.head_rows[head] - Marked(m, tokens), m});
    }
    return true;
  }

 private:
  const int64_t lot_;
  const int64_t factor_;
  const uint64_t seed_;
};

}  // namespace

PickerPtr LotteryPicker(int64_t lot, int64_t factor, uint64_t seed) {
  return std::make_unique<Lottery>(lot, factor, seed);
}
PickerPtr TokenPicker() { return std::make_unique<Tokens>(); }
PickerPtr ChunkPicker(int64_t chunk, int64_t chunked) {
  return std::make_unique<Chunks>(chunk, chunked);
}
PickerPtr TwoStagePicker(int64_t first, int64_t alpha) {
  return std::make_unique<TwoStages>(first, alpha);
}

}  // namespace cairn::selections
