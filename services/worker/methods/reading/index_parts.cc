#include "services/worker/methods/reading/index_parts.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "kernels/codecs/run_inline.h"
#include "services/worker/methods/reading/key_clusters.h"

namespace cairn::worker {

using kernels::CopyForm;
using kernels::CopyRows;

int64_t IndexSizes::units() const { return (rows + policy.unit_rows() - 1) / policy.unit_rows(); }

int64_t IndexSizes::stored() const {
  if (policy.kind != PolicyKind::kClusters) return units();
  return std::clamp<int64_t>(std::llround(policy.centres * static_cast<double>(rows)), 1,
                             std::min(rows, kMostClusters));
}

CopyRows IndexSizes::unit_form() const {
  CopyRows form;
  form.dim = dim();
  switch (policy.kind) {
    case PolicyKind::kQuest:
      form.dim = 2 * dim();
      break;
    case PolicyKind::kInfiniGen:
      form.dim =
          std::clamp<int64_t>(std::llround(policy.partial * static_cast<double>(dim())), 1, dim());
      break;
    case PolicyKind::kPrecision:
    case PolicyKind::kKeysCopy:
      form.form = policy.near_k.form;
      form.bits = policy.near_k.bits;
      break;
    case PolicyKind::kExactTopK:
    case PolicyKind::kLandmark:
    case PolicyKind::kClusters:
      break;
  }
  return form;
}

CopyRows IndexSizes::value_form() const {
  return {.form = policy.near_v.form, .bits = policy.near_v.bits, .dim = dim()};
}

IndexPlanes::IndexPlanes(const KvLayout& kv, int64_t rows, const CopyRows& form,
                         codecs::PlaneRole role)
    : heads_(kv.kv_heads),
      form_(form),
      head_bytes_(static_cast<size_t>(rows * form.row_bytes())),
      bytes_(head_bytes_ * static_cast<size_t>(kv.layers) * static_cast<size_t>(kv.kv_heads)) {
  if (form.form != CopyForm::kTurbo) return;
  signs_.resize(static_cast<size_t>(kv.layers * form.dim));
  for (int64_t layer = 0; layer < kv.layers; ++layer) {
    codecs::TurboSigns(layer, role, form.dim, signs_.data() + layer * form.dim);
  }
}

CopyRows IndexPlanes::Rows(int layer, int head) const {
  CopyRows rows = form_;
  rows.data = bytes_.data() + Head(layer, head) * head_bytes_;
  if (!signs_.empty()) rows.signs = signs_.data() + layer * form_.dim;
  return rows;
}

bool IndexPlanes::Encode(const kernels::CodecKernels& codec, int layer, int head, int64_t row,
                         const kernels::HalfRows& x) {
  std::byte* const to = bytes_.data() + Head(layer, head) * head_bytes_ +
                        static_cast<size_t>(row * form_.row_bytes());
  switch (form_.form) {
    case CopyForm::kInt8:
      return codecs::EncodeRows(codec.int8_encode, x, kernels::Int8Params{kernels::kCopyGroup}, to);
    case CopyForm::kInt4:
      return codecs::EncodeRows(codec.int4_token_encode, x,
                                kernels::Int4TokenParams{kernels::kCopyGroup}, to);
    case CopyForm::kTurbo:
      return codecs::EncodeRows(codec.turbo_encode, x,
                                kernels::TurboParams{form_.bits, signs_.data() + layer * form_.dim},
                                to);
    case CopyForm::kHalf:
      break;
  }
  std::memcpy(to, x.data, static_cast<size_t>(x.rows * x.dim) * sizeof(uint16_t));
  int64_t faults = 0;
  kernels::InlineStream stream;
  codec.count_non_finite(stream, {x, &faults});
  return faults == 0;
}

kernels::HalfRows BlockRows(const std::byte* data, const KvLayout& kv) {
  return {reinterpret_cast<const uint16_t*>(data), kv.block_tokens, kv.head_dim, kv.head_dim};
}

void AppendKeys(const LayerView& part, int head, const kernels::Backend& backend,
                std::vector<float>& keys) {
  const KvLayout& kv = part.layout();
  const int64_t block = int64_t{kv.block_tokens} * kv.head_dim;
  const size_t before = keys.size();
  keys.resize(before + static_cast<size_t>(part.page_count() * block));
  kernels::InlineStream stream;
  for (int64_t page = 0; page < part.page_count(); ++page) {
    float* const to = keys.data() + before + static_cast<size_t>(page * block);
    backend.forward->from_half(stream, {BlockRows(part.K(head, page), kv).data, to, block});
  }
}

bool LayerKeys::Add(const LayerView& part) {
  if (part.first_row() == 0) {
    heads_.assign(static_cast<size_t>(kv_.kv_heads), {});
    for (auto& head : heads_) head.reserve(static_cast<size_t>(rows_ * kv_.head_dim));
  }
  for (int head = 0; head < kv_.kv_heads; ++head) {
    for (int64_t page = 0; page < part.page_count(); ++page) {
      const kernels::HalfRows from = BlockRows(part.K(head, page), kv_);
      auto& to = heads_[static_cast<size_t>(head)];
      to.insert(to.end(), from.data, from.data + from.rows * from.dim);
    }
  }
  return part.end_row() == rows_;
}

std::vector<float> LayerKeys::Of(int head, const kernels::Backend& backend) const {
  const auto& from = heads_[static_cast<size_t>(head)];
  std::vector<float> keys(from.size());
  kernels::InlineStream stream;
  backend.forward->from_half(stream, {from.data(), keys.data(), std::ssize(keys)});
  return keys;
}

bool MakeAll(kernels::ThreadPool& pool, int64_t pieces, const std::function<bool(int64_t)>& make) {
  std::atomic<bool> good{true};
  pool.ParallelFor(pieces, [&](int64_t i, int) {
    if (!make(i)) good.store(false, std::memory_order_relaxed);
  });
  return good.load(std::memory_order_relaxed);
}

}  // namespace cairn::worker
