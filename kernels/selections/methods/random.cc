#include "kernels/selections/methods/random.h"

#include <numeric>
#include <utility>
#include <vector>

#include "kernels/selections/budget.h"
#include "kernels/selections/stages/random_numbers.h"

namespace cairn::selections {
namespace {

class Run final : public SelectionRun {
 public:
  Run(const ModelShape& shape, int64_t keep, bool sink, uint64_t seed)
      : shape_(shape), keep_(keep), sink_(sink), seed_(seed) {}

  void Observe(const QueryRows&, const SegmentKv&, kernels::ThreadPool&) override {}

  bool Select(const SegmentKv& kv, kernels::ThreadPool&, KeptRows* kept) override {
    const int64_t rows = RowsToKeep(kv.tokens, keep_);
    const int64_t fixed = sink_ && kv.first_position == 0 ? 1 : 0;
    *kept = KeptRows(shape_.layers, shape_.kv_heads, kv.tokens);
    SplitMix draw(seed_);
    std::vector<int64_t> order(static_cast<size_t>(kv.tokens));
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        std::iota(order.begin(), order.end(), 0);
        for (int64_t i = 0; i < rows; ++i) {
          if (i >= fixed) {
            const auto left = static_cast<uint64_t>(kv.tokens - i);
            std::swap(order[static_cast<size_t>(i)],
                      order[static_cast<size_t>(i) + draw.Next() % left]);
          }
          kept->Keep(layer, head, order[static_cast<size_t>(i)]);
        }
      }
    }
    return true;
  }

 private:
  const ModelShape shape_;
  const int64_t keep_;
  const bool sink_;
  const uint64_t seed_;
};

class RandomSelection final : public Selection {
 public:
  RandomSelection(int64_t keep, bool sink, uint64_t seed) : keep_(keep), sink_(sink), seed_(seed) {}
  std::string_view name() const override { return "random"; }
  int64_t FirstObserved(int64_t tokens) const override { return tokens; }
  std::unique_ptr<SelectionRun> Begin(const ModelShape& shape, const ModelAccess&,
                                      int64_t) const override {
    return std::make_unique<Run>(shape, keep_, sink_, seed_);
  }

 private:
  const int64_t keep_;
  const bool sink_;
  const uint64_t seed_;
};

}  // namespace

std::unique_ptr<Selection> MakeRandom(int64_t keep, bool sink, uint64_t seed) {
  return std::make_unique<RandomSelection>(keep, sink, seed);
}

}  // namespace cairn::selections
