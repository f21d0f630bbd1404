#include "kernels/selections/methods/sepllm.h"

#include <algorithm>
#include <vector>

#include "kernels/selections/budget.h"

namespace cairn::selections {
namespace {

class Run final : public SelectionRun {
 public:
  Run(const ModelShape& shape, const ModelAccess& model, int64_t keep, int64_t sinks, int64_t share)
      : shape_(shape), model_(model), keep_(keep), sinks_(sinks), share_(share) {}

  void Observe(const QueryRows&, const SegmentKv&, kernels::ThreadPool&) override {}

  bool Select(const SegmentKv& kv, kernels::ThreadPool&, KeptRows* kept) override {
    const int64_t rows = RowsToKeep(kv.tokens, keep_);
    const int64_t first = kv.first_position == 0 ? std::min(sinks_, rows) : 0;
    std::vector<int64_t> separators = Separators(kv, first);
    // The more separators, the shorter the recent run, and the more separators lie before it.
    int64_t taken = (rows - first) * share_ / 1000;
    int64_t recent = 0, before = 0;
    for (;; taken = before) {
      recent = kv.tokens - (rows - first - taken);
      before = std::lower_bound(separators.begin(), separators.end(), recent) - separators.begin();
      if (before >= taken) break;
    }
    *kept = KeptRows(shape_.layers, shape_.kv_heads, kv.tokens);
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        kept->KeepRange(layer, head, 0, first);
        kept->KeepRange(layer, head, recent, kv.tokens);
        for (int64_t i = before - taken; i < before; ++i) {
          kept->Keep(layer, head, separators[static_cast<size_t>(i)]);
        }
      }
    }
    return true;
  }

 private:
  std::vector<int64_t> Separators(const SegmentKv& kv, int64_t first) const {
    std::vector<int64_t> found;
    for (int64_t t = first; t < kv.tokens; ++t) {
      const int32_t id = kv.token_ids[static_cast<size_t>(t)];
      if (std::binary_search(model_.separators.begin(), model_.separators.end(), id)) {
        found.push_back(t);
      }
    }
    return found;
  }

  const ModelShape shape_;
  const ModelAccess& model_;
  const int64_t keep_;
  const int64_t sinks_;
  const int64_t share_;
};

class SepLlmSelection final : public Selection {
 public:
  SepLlmSelection(int64_t keep, int64_t sinks, int64_t share)
      : keep_(keep), sinks_(sinks), share_(share) {}
  std::string_view name() const override { return "sepllm"; }
  int64_t FirstObserved(int64_t tokens) const override { return tokens; }
  std::unique_ptr<SelectionRun> Begin(const ModelShape& shape, const ModelAccess& model,
                                      int64_t) const override {
    return std::make_unique<Run>(shape, model, keep_, sinks_, share_);
  }

 private:
  const int64_t keep_;
  const int64_t sinks_;
  const int64_t share_;
};

}  // namespace

std::unique_ptr<Selection> MakeSepLlm(int64_t keep, int64_t sinks, int64_t share) {
  return std::make_unique<SepLlmSelection>(keep, sinks, share);
}

}  // namespace cairn::selections
