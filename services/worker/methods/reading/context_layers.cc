#include "services/worker/methods/reading/context_layers.h"

namespace cairn::worker {

Status PageLayers::Begin(int layer) {
  slices_.clear();
  for (int64_t page = 0; page < pages_->page_count(); ++page) {
    slices_.push_back(pages_->K(layer, 0, page));
  }
  return OkStatus();
}

Result<std::span<const std::byte* const>> PageLayers::Next() {
  return std::span<const std::byte* const>(slices_);
}

Status PageLayers::End() {
  if (pages_->Intact()) return OkStatus();
  return Errorf(StatusCode::kAborted, "the cache node took lent memory back");
}

Result<std::span<const std::byte* const>> WindowLayers::Next() {
  CAIRN_ASSIGN_OR_RETURN(const EarlierKv::Window window, earlier_.Next());
  return window.slices;
}

}  // namespace cairn::worker
