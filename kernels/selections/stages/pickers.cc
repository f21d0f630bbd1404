#include "kernels/selections/stages/pickers.h"

#include <algorithm>
#include <numeric>

#include "kernels/selections/budget.h"
#include "kernels/selections/stages/budgets.h"
#include "kernels/selections/stages/projected_norm.h"

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
  explicit Chunks(int64_t chunk) : chunk_(chunk) {}

  bool Pick(const Segment& segment, const PickQuestion& q,
            std::span<uint8_t> marks) const override {
    const int64_t tokens = segment.kv.tokens, heads = segment.shape.kv_heads;
    if (tokens < chunk_) return Tokens().Pick(segment, q, marks);
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
      const int64_t first =
          std::max({int64_t{first_ > 0 ? 1 : 0}, rows * first_ / 1000, SafeRows(q.rows, alpha_)});
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

}  // namespace

PickerPtr TokenPicker() { return std::make_unique<Tokens>(); }
PickerPtr ChunkPicker(int64_t chunk) { return std::make_unique<Chunks>(chunk); }
PickerPtr TwoStagePicker(int64_t first, int64_t alpha) {
  return std::make_unique<TwoStages>(first, alpha);
}

}  // namespace cairn::selections
