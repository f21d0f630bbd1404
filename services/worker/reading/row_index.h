#pragma once
// The part of a context that a read policy keeps near in addition to its working set, and the way
// in which it ranks rows: by logits of units (rows, or pages of rows) with a form of the query.
// Rows may share a stored row, whose logit all of them get.

#include <cstdint>
#include <memory>
#include <span>

#include "cairn/kernels/backend.h"
#include "cairn/kernels/thread_pool.h"
#include "services/worker/kv/kv_pool.h"
#include "services/worker/reading/key_rotation.h"
#include "services/worker/reading/read_policy.h"

namespace cairn::worker {

// K and V of some blocks of one layer of a context, which follow each other there: a slice per
// block, as it lies in a page.
class LayerView {
 public:
  // The slices stay valid as long as the view. `first_row`: of the context, the first one here.
  LayerView(const KvLayout& kv, std::span<const std::byte* const> slices, int64_t first_row)
      : kv_(&kv), slices_(slices), first_row_(first_row) {}
  const KvLayout& layout() const { return *kv_; }
  int64_t first_row() const { return first_row_; }
  int64_t end_row() const { return first_row_ + rows(); }
  int64_t page_count() const { return std::ssize(slices_); }
  int64_t rows() const { return page_count() * kv_->block_tokens; }
  // Rows of one head of one block, counted from the first one here: [block_tokens][head_dim].
  const std::byte* K(int head, int64_t page) const {
    return slices_[static_cast<size_t>(page)] + static_cast<size_t>(head) * kv_->head_bytes();
  }
  const std::byte* V(int head, int64_t page) const { return K(head, page) + kv_->plane_bytes(); }

 private:
  const KvLayout* kv_;
  std::span<const std::byte* const> slices_;
  int64_t first_row_;
};

// Once all layers were added, any thread may use it at any time. Before, only its sizes are known.
class RowIndex {
 public:
  virtual ~RowIndex() = default;

  // The bytes for a context of `rows` rows.
  static uint64_t Bytes(const ReadPolicy& policy, const KvLayout& kv, int64_t rows);
  // An index for a context of `rows` rows, whose layers are added one by one. `backend` runs
  // inline, and must outlive the index. `rotations`: those that the policy names, of this layout;
  // null when it names none.
  static std::unique_ptr<RowIndex> Make(const ReadPolicy& policy, const KvLayout& kv, int64_t rows,
                                        const kernels::Backend& backend,
                                        std::shared_ptr<const KeyRotations> rotations = nullptr);
  // The next rows of the layer. Layers come in order, and the rows of each, until all were added.
  // False: the layer has numbers that are not finite.
  virtual bool AddRows(int layer, const LayerView& part, kernels::ThreadPool& pool) = 0;

  // The units that are ranked.
  int64_t units() const { return units_; }
  // Rows of Units().
  int64_t stored() const { return stored_; }
  // Numbers of a query's form.
  int64_t width() const { return width_; }
  // The stored rows of one head of one layer, `width` numbers a row: row u is that of unit u, or of
  // all units that Shared says.
  virtual kernels::CopyRows Units(int layer, int head) const = 0;
  // By unit: the row of Units() that is its own and others'. Empty, for all heads: each unit has
  // its own.
  virtual std::span<const uint16_t> Shared(int /*layer*/, int /*head*/) const { return {}; }
  // The form of a query of `head_dim` numbers: `to` gets `width`.
  virtual void Form(int layer, int head, const float* q, float* to) const = 0;
  // For those who keep the index elsewhere, of the policies that IndexStore keeps. Bytes of a
  // layer, the same of each.
  virtual uint64_t LayerBytes() const { return 0; }
  // `to` has LayerBytes(). REQUIRES: all layers were added.
  virtual void Save(int /*layer*/, std::span<std::byte> /*to*/) const {}
  // Instead of adding the rows of the layer. False: no index of such a context saved these bytes.
  virtual bool Load(int /*layer*/, std::span<const std::byte> /*from*/) { return false; }
  // Values of the copy, by row; without data where the policy has none.
  virtual kernels::CopyRows Values(int /*layer*/, int /*head*/) const { return {}; }

 protected:
  RowIndex(int64_t units, int64_t width) : RowIndex(units, units, width) {}
  RowIndex(int64_t units, int64_t stored, int64_t width)
      : units_(units), stored_(stored), width_(width) {}

 private:
  const int64_t units_;
  const int64_t stored_;
  const int64_t width_;
};

}  // namespace cairn::worker
