#include "services/worker/methods/reading/far_pages.h"

#include <algorithm>
#include <cstring>

namespace cairn::worker {

std::shared_ptr<const FarPages> FarPages::Of(const KvSequence& sequence, int64_t pages) {
  CAIRN_CHECK(sequence.base() == 0 && pages <= sequence.page_count());
  auto far = std::make_shared<FarPages>();
  far->layout_ = sequence.layout();
  const size_t page_bytes = far->layout_.page_bytes();
  for (int64_t page = 0; page < pages; ++page) far->lent_pages_ += sequence.lent(page) ? 1 : 0;
  far->copy_.resize(static_cast<size_t>(pages - far->lent_pages_) * page_bytes);
  std::byte* to = far->copy_.data();
  for (int64_t page = 0; page < pages; ++page) {
    const std::byte* const from = sequence.LayerSlice(page, 0).data();
    if (sequence.lent(page)) {
      far->pages_.push_back(from);
      std::shared_ptr<const PageLoan> loan = sequence.LoanOf(page);
      if (std::ranges::find(far->loans_, loan) == far->loans_.end()) {
        far->loans_.push_back(std::move(loan));
      }
      continue;
    }
    std::memcpy(to, from, page_bytes);
    far->pages_.push_back(to);
    to += page_bytes;
  }
  if (!far->Intact()) return nullptr;
  return far;
}

bool FarPages::Intact() const {
  return std::ranges::all_of(loans_, [](const auto& loan) { return loan->Intact(); });
}

std::shared_ptr<RowGather> PageRows::Gather(RowRequest request) {
  const KvLayout& kv = pages_->layout();
  const size_t row_bytes = kv.row_bytes();
  for (const RowRequest::Head& head : request.heads) {
    std::byte* k = head.k;
    std::byte* v = head.v;
    for (const int32_t row : head.rows) {
      const int64_t page = row / kv.block_tokens;
      const size_t at = static_cast<size_t>(row % kv.block_tokens) * row_bytes;
      std::memcpy(k, pages_->K(request.layer, head.head, page) + at, row_bytes);
      std::memcpy(v, pages_->V(request.layer, head.head, page) + at, row_bytes);
      k += row_bytes;
      v += row_bytes;
    }
  }
  auto gather = std::make_shared<RowGather>();
  // The node may have taken its memory back while it was read.
  gather->Finish(pages_->Intact());
  return gather;
}

}  // namespace cairn::worker
