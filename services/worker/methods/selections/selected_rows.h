#pragma once
// The rows of a block that a selection kept, as they are pushed.

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "services/worker/kv/kv_pool.h"
#include "services/worker/kv/ragged_prefix.h"
#include "services/worker/session/push_queue.h"

namespace cairn::worker {

struct SelectedRows {
  KvLayout kv;
  std::vector<uint64_t> masks;  // [layers][kv_heads][words]: format/selected_slice.h
  uint64_t bytes = 0;           // The bytes of all rows, not encoded.
  // Has them, in each head one after the other. Null: they are in ComputedBlock::page, among
  // others.
  std::shared_ptr<const RaggedPrefix> prefix = nullptr;
  std::vector<int64_t> first_row = {};  // In `prefix`: [layers][kv_heads].
};

// As BlockSlices. Immutable.
class SelectedSlices final : public BlockSlices {
 public:
  explicit SelectedSlices(SelectedRows rows) : rows_(std::move(rows)) {}

  uint64_t bytes() const override { return rows_.bytes; }
  Status Append(const ComputedBlock& block, const KvCodec& codec, int layer,
                KvCodec::Scratch& scratch, std::vector<std::byte>* part) const override;

 private:
  const SelectedRows rows_;
};

}  // namespace cairn::worker
