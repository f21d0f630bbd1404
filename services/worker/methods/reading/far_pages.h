#pragma once
// The whole KV of a context in host memory outside of the pool: where the node lends its memory,
// the blocks are read there, and the rest is a copy. And a RowSource over it.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "services/worker/kv/kv_pool.h"
#include "services/worker/methods/reading/row_source.h"

namespace cairn::worker {

// Immutable; thread-safe. Holds the loans.
class FarPages {
 public:
  // The first `pages` pages of a sequence, of whole blocks. Null: a loan was broken meanwhile.
  // REQUIRES: sequence.base() == 0.
  static std::shared_ptr<const FarPages> Of(const KvSequence& sequence, int64_t pages);

  const KvLayout& layout() const { return layout_; }
  int64_t rows() const { return std::ssize(pages_) * layout_.block_tokens; }
  int64_t page_count() const { return std::ssize(pages_); }
  // Rows of one head of one page, [block_tokens][head_dim].
  const std::byte* K(int layer, int head, int64_t page) const {
    return pages_[static_cast<size_t>(page)] + static_cast<size_t>(layer) * layout_.layer_bytes() +
           static_cast<size_t>(head) * layout_.head_bytes();
  }
  const std::byte* V(int layer, int head, int64_t page) const {
    return K(layer, head, page) + layout_.plane_bytes();
  }
  // True: what was read of the pages before this call is right.
  bool Intact() const;
  int64_t lent_pages() const { return lent_pages_; }
  uint64_t copied_bytes() const { return copy_.size(); }

 private:
  KvLayout layout_;
  std::vector<const std::byte*> pages_;
  std::vector<std::shared_ptr<const PageLoan>> loans_;  // Each once.
  int64_t lent_pages_ = 0;
  std::vector<std::byte> copy_;
};

// Copies rows inside of Gather. Thread-safe.
class PageRows final : public RowSource {
 public:
  explicit PageRows(std::shared_ptr<const FarPages> pages) : pages_(std::move(pages)) {}
  std::shared_ptr<RowGather> Gather(RowRequest request) override;

 private:
  const std::shared_ptr<const FarPages> pages_;
};

}  // namespace cairn::worker
