#include <algorithm>

#include "services/worker/methods/reading/index_parts.h"

namespace cairn::worker {
namespace {

// Units are the keys themselves, as a codec stores them, and for precision the values too.
class CopyIndex final : public RowIndex {
 public:
  explicit CopyIndex(const IndexShape& s)
      : RowIndex(s.rows, s.dim()),
        codec_(*s.backend.codecs),
        k_(s.kv, s.rows, s.unit_form(), codecs::PlaneRole::kKeys),
        v_(s.kv, s.policy.has_copy() ? s.rows : 0, s.value_form(), codecs::PlaneRole::kValues),
        has_values_(s.policy.has_copy()) {}

  bool AddRows(int layer, const LayerView& part, kernels::ThreadPool& pool) override {
    const KvLayout& kv = part.layout();
    return MakeAll(pool, part.page_count() * kv.kv_heads, [&](int64_t i) {
      const auto head = static_cast<int>(i % kv.kv_heads);
      const int64_t page = i / kv.kv_heads, row = part.first_row() + page * kv.block_tokens;
      return k_.Encode(codec_, layer, head, row, BlockRows(part.K(head, page), kv)) &&
             (!has_values_ ||
              v_.Encode(codec_, layer, head, row, BlockRows(part.V(head, page), kv)));
    });
  }

  kernels::CopyRows Units(int layer, int head) const override { return k_.Rows(layer, head); }
  void Form(int, int, const float* q, float* to) const override { std::copy_n(q, width(), to); }
  kernels::CopyRows Values(int layer, int head) const override {
    return has_values_ ? v_.Rows(layer, head) : kernels::CopyRows{};
  }

 private:
  const kernels::CodecKernels& codec_;
  IndexPlanes k_, v_;
  const bool has_values_;
};

}  // namespace

std::unique_ptr<RowIndex> MakeCopyIndex(const IndexShape& shape) {
  return std::make_unique<CopyIndex>(shape);
}

}  // namespace cairn::worker
