#include <algorithm>
#include <vector>

#include "cairn/kernels/stream.h"
#include "services/worker/methods/reading/index_parts.h"

namespace cairn::worker {
namespace {

// A unit is a page's means, or its greatest and then its least keys.
class PageIndex final : public RowIndex {
 public:
  explicit PageIndex(const IndexShape& s)
      : RowIndex(s.units(), s.unit_form().dim),
        backend_(s.backend),
        bounds_(s.policy.kind == PolicyKind::kQuest),
        page_(s.policy.page),
        rows_(s.rows),
        dim_(s.dim()),
        planes_(s.kv, units(), s.unit_form(), codecs::PlaneRole::kKeys),
        left_(static_cast<size_t>(s.kv.kv_heads)) {}

  bool AddRows(int layer, const LayerView& part, kernels::ThreadPool& pool) override {
    return MakeAll(pool, part.layout().kv_heads, [&](int64_t i) {
      const auto head = static_cast<int>(i);
      // The keys that are here, from the first one whose unit is not made yet.
      std::vector<float>& keys = left_[static_cast<size_t>(head)];
      int64_t unit = part.first_row() / page_;
      AppendKeys(part, head, backend_, keys);
      const int64_t rows = std::ssize(keys) / dim_;
      const bool last = part.end_row() == rows_;
      bool good = true;
      int64_t begin = 0;
      for (; good && begin < rows && (last || begin + page_ <= rows); begin += page_, ++unit) {
        good = AddUnit(layer, head, unit, keys, begin, std::min(begin + page_, rows));
      }
      keys.erase(keys.begin(), keys.begin() + std::min(begin, rows) * dim_);
      return good;
    });
  }

  kernels::CopyRows Units(int layer, int head) const override { return planes_.Rows(layer, head); }
  // The sum over channels of max(q * greatest, q * least) is that of the positive part of q with
  // the greatest and of its negative part with the least.
  void Form(int, int, const float* q, float* to) const override {
    if (!bounds_) {
      std::copy_n(q, dim_, to);
      return;
    }
    for (int64_t c = 0; c < dim_; ++c) {
      to[c] = std::max(q[c], 0.0f);
      to[dim_ + c] = std::min(q[c], 0.0f);
    }
  }

 private:
  bool AddUnit(int layer, int head, int64_t u, const std::vector<float>& keys, int64_t begin,
               int64_t end) {
    std::vector<float> unit(static_cast<size_t>(width()));
    std::vector<uint16_t> half(unit.size());
    Summarise(keys, begin, end, unit);
    kernels::InlineStream stream;
    backend_.forward->to_half(stream, {unit.data(), half.data(), width()});
    return planes_.Encode(*backend_.codecs, layer, head, u, {half.data(), 1, width(), width()});
  }
  void Summarise(const std::vector<float>& keys, int64_t begin, int64_t end,
                 std::vector<float>& unit) const {
    for (int64_t c = 0; c < dim_; ++c) {
      float sum = 0, top = keys[static_cast<size_t>(begin * dim_ + c)], low = top;
      for (int64_t r = begin; r < end; ++r) {
        const float x = keys[static_cast<size_t>(r * dim_ + c)];
        sum += x;
        top = std::max(top, x);
        low = std::min(low, x);
      }
      const auto at = static_cast<size_t>(c);
      unit[at] = bounds_ ? top : sum / static_cast<float>(end - begin);
      if (bounds_) unit[at + static_cast<size_t>(dim_)] = low;
    }
  }

  const kernels::Backend& backend_;
  const bool bounds_;
  const int64_t page_;
  const int64_t rows_;
  const int64_t dim_;
  IndexPlanes planes_;
  // By head, [rows][dim]: keys behind the last whole unit, until the next part of the layer.
  std::vector<std::vector<float>> left_;
};

}  // namespace

std::unique_ptr<RowIndex> MakePageIndex(const IndexShape& shape) {
  return std::make_unique<PageIndex>(shape);
}

}  // namespace cairn::worker
