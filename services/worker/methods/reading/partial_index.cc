#include <utility>
#include <vector>

#include "cairn/kernels/stream.h"
#include "services/worker/methods/reading/index_parts.h"

namespace cairn::worker {
namespace {

// Some columns of rotated keys: of rotations that were found offline, or of the keys' own.
class PartialIndex final : public RowIndex {
 public:
  PartialIndex(const IndexShape& s, std::shared_ptr<const KeyRotations> rotations)
      : RowIndex(s.rows, s.unit_form().dim),
        backend_(s.backend),
        rotations_(std::move(rotations)),
        dim_(s.dim()),
        heads_(s.kv.kv_heads),
        planes_(s.kv, units(), s.unit_form(), codecs::PlaneRole::kKeys),
        keys_(s.kv, s.rows),
        columns_(static_cast<size_t>(s.kv.layers) * static_cast<size_t>(heads_)) {}

  bool AddRows(int layer, const LayerView& part, kernels::ThreadPool& pool) override {
    if (!keys_.Add(part)) return true;
    const bool all = MakeAll(pool, heads_, [&](int64_t i) {
      const auto head = static_cast<int>(i);
      const std::vector<float> keys = keys_.Of(head, backend_);
      std::vector<float>& columns = columns_[At(layer, head)];
      columns = rotations_ == nullptr ? PrincipalColumns(keys, dim_, width())
                                      : PartialColumns(*rotations_, layer, head, keys, width());
      std::vector<float> row(static_cast<size_t>(width()));
      std::vector<uint16_t> half(row.size());
      bool good = true;
      for (int64_t r = 0; r < units() && good; ++r) {
        Rotate(columns, keys.data() + r * dim_, row.data());
        kernels::InlineStream stream;
        backend_.forward->to_half(stream, {row.data(), half.data(), width()});
        good = planes_.Encode(*backend_.codecs, layer, head, r, {half.data(), 1, width(), width()});
      }
      return good;
    });
    keys_.Clear();
    return all;
  }

  kernels::CopyRows Units(int layer, int head) const override { return planes_.Rows(layer, head); }
  void Form(int layer, int head, const float* q, float* to) const override {
    Rotate(columns_[At(layer, head)], q, to);
  }

 private:
  size_t At(int layer, int head) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(heads_) + static_cast<size_t>(head);
  }
  void Rotate(const std::vector<float>& columns, const float* x, float* to) const {
    for (int64_t i = 0; i < width(); ++i) {
      const float* const column = columns.data() + i * dim_;
      float sum = 0;
      for (int64_t c = 0; c < dim_; ++c) sum += x[c] * column[c];
      to[i] = sum;
    }
  }

  const kernels::Backend& backend_;
  const std::shared_ptr<const KeyRotations> rotations_;  // Null: each head's own.
  const int64_t dim_;
  const int32_t heads_;
  IndexPlanes planes_;
  LayerKeys keys_;
  std::vector<std::vector<float>> columns_;  // By layer and head: [width][dim].
};

}  // namespace

std::unique_ptr<RowIndex> MakePartialIndex(const IndexShape& shape,
                                           std::shared_ptr<const KeyRotations> rotations) {
  return std::make_unique<PartialIndex>(shape, std::move(rotations));
}

}  // namespace cairn::worker
