#include "services/worker/reading/row_index.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/codecs/run_inline.h"
#include "kernels/codecs/turbo/turbo_plane.h"
#include "services/worker/reading/key_clusters.h"

namespace cairn::worker {
namespace {

using kernels::CopyForm;
using kernels::CopyRows;

int64_t UnitsOf(const ReadPolicy& policy, int64_t rows) {
  return (rows + policy.unit_rows() - 1) / policy.unit_rows();
}

// Centres of a head's keys.
int64_t CentresOf(const ReadPolicy& policy, int64_t rows) {
  return std::clamp<int64_t>(std::llround(policy.centres * static_cast<double>(rows)), 1,
                             std::min(rows, kMostClusters));
}

int64_t StoredOf(const ReadPolicy& policy, int64_t rows) {
  return policy.kind == PolicyKind::kClusters ? CentresOf(policy, rows) : UnitsOf(policy, rows);
}

int64_t ColumnsOf(const ReadPolicy& policy, int64_t dim) {
  return std::clamp<int64_t>(std::llround(policy.partial * static_cast<double>(dim)), 1, dim);
}

// Numbers of a unit.
int64_t WidthOf(const ReadPolicy& policy, int64_t dim) {
  if (policy.kind == PolicyKind::kQuest) return 2 * dim;
  if (policy.kind == PolicyKind::kInfiniGen) return ColumnsOf(policy, dim);
  return dim;
}

// How the units of a policy are stored.
CopyRows UnitShape(const ReadPolicy& policy, int64_t dim) {
  CopyRows shape;
  shape.dim = WidthOf(policy, dim);
  if (policy.kind == PolicyKind::kPrecision || policy.kind == PolicyKind::kKeysCopy) {
    shape.form = policy.near_k.form;
    shape.bits = policy.near_k.bits;
  }
  return shape;
}
CopyRows ValueShape(const ReadPolicy& policy, int64_t dim) {
  return {.form = policy.near_v.form, .bits = policy.near_v.bits, .dim = dim};
}

// Rows of one plane of all heads of all layers, each head's one after the other.
class Planes {
 public:
  Planes(const KvLayout& kv, int64_t rows, const CopyRows& shape, codecs::PlaneRole role)
      : heads_(kv.kv_heads),
        shape_(shape),
        head_bytes_(static_cast<size_t>(rows * shape.row_bytes())),
        bytes_(head_bytes_ * static_cast<size_t>(kv.layers) * static_cast<size_t>(kv.kv_heads)) {
    if (shape.form != CopyForm::kTurbo) return;
    signs_.resize(static_cast<size_t>(kv.layers * shape.dim));
    for (int64_t layer = 0; layer < kv.layers; ++layer) {
      codecs::TurboSigns(layer, role, shape.dim, signs_.data() + layer * shape.dim);
    }
  }

  std::byte* At(int layer, int head, int64_t row) {
    return bytes_.data() + Head(layer, head) * head_bytes_ +
           static_cast<size_t>(row * shape_.row_bytes());
  }
  CopyRows Rows(int layer, int head) const {
    CopyRows rows = shape_;
    rows.data = bytes_.data() + Head(layer, head) * head_bytes_;
    if (!signs_.empty()) rows.signs = signs_.data() + layer * shape_.dim;
    return rows;
  }
  // False: a number is not finite.
  bool Encode(const kernels::CodecKernels& codec, int layer, int head, int64_t row,
              const kernels::HalfRows& x) {
    std::byte* const to = At(layer, head, row);
    switch (shape_.form) {
      case CopyForm::kInt8:
        return codecs::EncodeRows(codec.int8_encode, x, kernels::Int8Params{kernels::kCopyGroup},
                                  to);
      case CopyForm::kInt4:
        return codecs::EncodeRows(codec.int4_token_encode, x,
                                  kernels::Int4TokenParams{kernels::kCopyGroup}, to);
      case CopyForm::kTurbo:
        return codecs::EncodeRows(
            codec.turbo_encode, x,
            kernels::TurboParams{shape_.bits, signs_.data() + layer * shape_.dim}, to);
      case CopyForm::kHalf:
        break;
    }
    std::memcpy(to, x.data, static_cast<size_t>(x.rows * x.dim) * sizeof(uint16_t));
    int64_t faults = 0;
    kernels::InlineStream stream;
    codec.count_non_finite(stream, {x, &faults});
    return faults == 0;
  }

 private:
  size_t Head(int layer, int head) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(heads_) + static_cast<size_t>(head);
  }
  const int32_t heads_;
  const CopyRows shape_;
  const size_t head_bytes_;
  std::vector<std::byte> bytes_;
  std::vector<uint32_t> signs_;  // kTurbo: [layers][dim].
};

// What all makers share.
struct Shape {
  const ReadPolicy& policy;
  const KvLayout& kv;
  int64_t rows;
  const kernels::Backend& backend;
  int64_t dim() const { return kv.head_dim; }
};

kernels::HalfRows Rows(const std::byte* data, const KvLayout& kv) {
  return {reinterpret_cast<const uint16_t*>(data), kv.block_tokens, kv.head_dim, kv.head_dim};
}

// The keys of a head in float32, [rows][dim].
std::vector<float> KeysOf(const LayerView& context, int head, const kernels::Backend& backend) {
  const KvLayout& kv = context.layout();
  const int64_t block = int64_t{kv.block_tokens} * kv.head_dim;
  std::vector<float> keys(static_cast<size_t>(context.page_count() * block));
  kernels::InlineStream stream;
  for (int64_t page = 0; page < context.page_count(); ++page) {
    backend.forward->from_half(
        stream, {Rows(context.K(head, page), kv).data, keys.data() + page * block, block});
  }
  return keys;
}

// Calls make(piece) for all pieces. False: one of them said so.
bool All(kernels::ThreadPool& pool, int64_t pieces, const std::function<bool(int64_t)>& make) {
  std::atomic<bool> good{true};
  pool.ParallelFor(pieces, [&](int64_t i, int) {
    if (!make(i)) good.store(false, std::memory_order_relaxed);
  });
  return good.load(std::memory_order_relaxed);
}

// Units are the keys themselves, as a codec stores them, and for precision the values too.
class CopyIndex final : public RowIndex {
 public:
  explicit CopyIndex(const Shape& s)
      : RowIndex(s.rows, s.dim()),
        codec_(*s.backend.codecs),
        k_(s.kv, s.rows, UnitShape(s.policy, s.dim()), codecs::PlaneRole::kKeys),
        v_(s.kv, s.policy.has_copy() ? s.rows : 0, ValueShape(s.policy, s.dim()),
           codecs::PlaneRole::kValues),
        has_values_(s.policy.has_copy()) {}

  bool AddLayer(int layer, const LayerView& context, kernels::ThreadPool& pool) override {
    const KvLayout& kv = context.layout();
    return All(pool, context.page_count() * kv.kv_heads, [&](int64_t i) {
      const auto head = static_cast<int>(i % kv.kv_heads);
      const int64_t page = i / kv.kv_heads, row = page * kv.block_tokens;
      return k_.Encode(codec_, layer, head, row, Rows(context.K(head, page), kv)) &&
             (!has_values_ || v_.Encode(codec_, layer, head, row, Rows(context.V(head, page), kv)));
    });
  }

  CopyRows Units(int layer, int head) const override { return k_.Rows(layer, head); }
  void Form(int, int, const float* q, float* to) const override { std::copy_n(q, width(), to); }
  CopyRows Values(int layer, int head) const override {
    return has_values_ ? v_.Rows(layer, head) : CopyRows{};
  }

 private:
  const kernels::CodecKernels& codec_;
  Planes k_, v_;
  const bool has_values_;
};

// A unit is a page's means, or its greatest and then its least keys.
class PageIndex final : public RowIndex {
 public:
  explicit PageIndex(const Shape& s)
      : RowIndex(UnitsOf(s.policy, s.rows), WidthOf(s.policy, s.dim())),
        backend_(s.backend),
        bounds_(s.policy.kind == PolicyKind::kQuest),
        page_(s.policy.page),
        dim_(s.dim()),
        planes_(s.kv, units(), UnitShape(s.policy, s.dim()), codecs::PlaneRole::kKeys) {}

  bool AddLayer(int layer, const LayerView& context, kernels::ThreadPool& pool) override {
    return All(pool, context.layout().kv_heads, [&](int64_t i) {
      const auto head = static_cast<int>(i);
      const std::vector<float> keys = KeysOf(context, head, backend_);
      std::vector<float> unit(static_cast<size_t>(width()));
      std::vector<uint16_t> half(unit.size());
      bool good = true;
      for (int64_t u = 0; u < units() && good; ++u) {
        Summarise(keys, u * page_, std::min((u + 1) * page_, context.rows()), unit);
        kernels::InlineStream stream;
        backend_.forward->to_half(stream, {unit.data(), half.data(), width()});
        good = planes_.Encode(*backend_.codecs, layer, head, u, {half.data(), 1, width(), width()});
      }
      return good;
    });
  }

  CopyRows Units(int layer, int head) const override { return planes_.Rows(layer, head); }
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
  const int64_t dim_;
  Planes planes_;
};

// Units are rows, and those of a cluster share its mean key.
class ClusterIndex final : public RowIndex {
 public:
  explicit ClusterIndex(const Shape& s)
      : RowIndex(s.rows, StoredOf(s.policy, s.rows), s.dim()),
        backend_(s.backend),
        heads_(s.kv.kv_heads),
        planes_(s.kv, stored(), UnitShape(s.policy, s.dim()), codecs::PlaneRole::kKeys),
        of_row_(static_cast<size_t>(s.kv.layers) * static_cast<size_t>(heads_)) {}

  bool AddLayer(int layer, const LayerView& context, kernels::ThreadPool& pool) override {
    return All(pool, heads_, [&](int64_t i) {
      const auto head = static_cast<int>(i);
      const std::vector<float> keys = KeysOf(context, head, backend_);
      if (!std::ranges::all_of(keys, [](float x) { return std::isfinite(x); })) return false;
      KeyClusters clusters = ClusterKeys(keys, width(), stored(), backend_);
      of_row_[At(layer, head)] = std::move(clusters.of_row);
      std::vector<uint16_t> half(clusters.means.size());
      kernels::InlineStream stream;
      backend_.forward->to_half(stream,
                                {clusters.means.data(), half.data(), std::ssize(clusters.means)});
      return planes_.Encode(*backend_.codecs, layer, head, 0,
                            {half.data(), stored(), width(), width()});
    });
  }

  CopyRows Units(int layer, int head) const override { return planes_.Rows(layer, head); }
  std::span<const uint16_t> Shared(int layer, int head) const override {
    return of_row_[At(layer, head)];
  }
  void Form(int, int, const float* q, float* to) const override { std::copy_n(q, width(), to); }

 private:
  size_t At(int layer, int head) const {
    return static_cast<size_t>(layer) * static_cast<size_t>(heads_) + static_cast<size_t>(head);
  }

  const kernels::Backend& backend_;
  const int32_t heads_;
  Planes planes_;
  std::vector<std::vector<uint16_t>> of_row_;  // By layer and head.
};

// Some columns of rotated keys: of rotations that were found offline, or of the keys' own.
class PartialIndex final : public RowIndex {
 public:
  PartialIndex(const Shape& s, std::shared_ptr<const KeyRotations> rotations)
      : RowIndex(s.rows, WidthOf(s.policy, s.dim())),
        backend_(s.backend),
        rotations_(std::move(rotations)),
        dim_(s.dim()),
        heads_(s.kv.kv_heads),
        planes_(s.kv, units(), UnitShape(s.policy, s.dim()), codecs::PlaneRole::kKeys),
        columns_(static_cast<size_t>(s.kv.layers) * static_cast<size_t>(heads_)) {}

  bool AddLayer(int layer, const LayerView& context, kernels::ThreadPool& pool) override {
    return All(pool, heads_, [&](int64_t i) {
      const auto head = static_cast<int>(i);
      const std::vector<float> keys = KeysOf(context, head, backend_);
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
  }

  CopyRows Units(int layer, int head) const override { return planes_.Rows(layer, head); }
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
  Planes planes_;
  std::vector<std::vector<float>> columns_;  // By layer and head: [width][dim].
};

}  // namespace

uint64_t RowIndex::Bytes(const ReadPolicy& policy, const KvLayout& kv, int64_t rows) {
  const int64_t dim = kv.head_dim;
  const int64_t heads = int64_t{kv.layers} * kv.kv_heads;
  int64_t head_bytes = StoredOf(policy, rows) * UnitShape(policy, dim).row_bytes();
  if (policy.has_copy()) head_bytes += rows * ValueShape(policy, dim).row_bytes();
  if (policy.kind == PolicyKind::kInfiniGen) head_bytes += ColumnsOf(policy, dim) * dim * 4;
  if (policy.kind == PolicyKind::kClusters) head_bytes += rows * 2;
  return static_cast<uint64_t>(heads * head_bytes);
}

std::unique_ptr<RowIndex> RowIndex::Make(const ReadPolicy& policy, const KvLayout& kv, int64_t rows,
                                         const kernels::Backend& backend,
                                         std::shared_ptr<const KeyRotations> rotations) {
  CAIRN_CHECK((policy.rotation != 0) == (rotations != nullptr));
  const Shape shape{policy, kv, rows, backend};
  switch (policy.kind) {
    case PolicyKind::kQuest:
    case PolicyKind::kLandmark:
      return std::make_unique<PageIndex>(shape);
    case PolicyKind::kClusters:
      return std::make_unique<ClusterIndex>(shape);
    case PolicyKind::kInfiniGen:
      return std::make_unique<PartialIndex>(shape, std::move(rotations));
    case PolicyKind::kPrecision:
    case PolicyKind::kExactTopK:
    case PolicyKind::kKeysCopy:
      break;
  }
  return std::make_unique<CopyIndex>(shape);
}

}  // namespace cairn::worker
