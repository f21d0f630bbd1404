#include "kernels/selections/methods/streaming.h"

#include <algorithm>

#include "kernels/selections/budget.h"

namespace cairn::selections {
namespace {

class Run final : public SelectionRun {
 public:
  Run(const ModelShape& shape, int64_t keep, int64_t sinks)
      : shape_(shape), keep_(keep), sinks_(sinks) {}

  void Observe(const QueryRows&, const SegmentKv&, kernels::ThreadPool&) override {}

  bool Select(const SegmentKv& kv, kernels::ThreadPool&, KeptRows* kept) override {
    const int64_t rows = RowsToKeep(kv.tokens, keep_);
    const int64_t first = kv.first_position == 0 ? std::min(sinks_, rows) : 0;
    *kept = KeptRows(shape_.layers, shape_.kv_heads, kv.tokens);
    for (int32_t layer = 0; layer < shape_.layers; ++layer) {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        kept->KeepRange(layer, head, 0, first);
        kept->KeepRange(layer, head, kv.tokens - (rows - first), kv.tokens);
      }
    }
    return true;
  }

 private:
  const ModelShape shape_;
  const int64_t keep_;
  const int64_t sinks_;
};

class StreamingSelection final : public Selection {
 public:
  StreamingSelection(int64_t keep, int64_t sinks) : keep_(keep), sinks_(sinks) {}
  std::string_view name() const override { return "streaming"; }
  int64_t FirstObserved(int64_t tokens) const override { return tokens; }
  std::unique_ptr<SelectionRun> Begin(const ModelShape& shape, const ModelAccess&,
                                      int64_t) const override {
    return std::make_unique<Run>(shape, keep_, sinks_);
  }

 private:
  const int64_t keep_;
  const int64_t sinks_;
};

}  // namespace

std::unique_ptr<Selection> MakeStreaming(int64_t keep, int64_t sinks) {
  return std::make_unique<StreamingSelection>(keep, sinks);
}

}  // namespace cairn::selections
