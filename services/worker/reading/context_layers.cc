#include "services/worker/reading/context_layers.h"

#include <cstring>

namespace cairn::worker {

Result<std::span<const std::byte* const>> PageLayers::Layer(int layer) {
  slices_.clear();
  for (int64_t page = 0; page < pages_->page_count(); ++page) {
    slices_.push_back(pages_->K(layer, 0, page));
  }
  return slices_;
}

Result<std::span<const std::byte* const>> WindowLayers::Layer(int layer) {
  const auto blocks = static_cast<size_t>(rows() / kv_.block_tokens);
  layer_.resize(blocks * kv_.layer_bytes());
  slices_.clear();
  CAIRN_RETURN_IF_ERROR(earlier_.Begin(layer));
  while (slices_.size() < blocks) {
    CAIRN_ASSIGN_OR_RETURN(const EarlierKv::Window window, earlier_.Next());
    for (const std::byte* const slice : window.slices) {
      CAIRN_CHECK(slices_.size() < blocks);
      std::byte* const to = layer_.data() + slices_.size() * kv_.layer_bytes();
      std::memcpy(to, slice, kv_.layer_bytes());
      slices_.push_back(to);
    }
  }
  CAIRN_RETURN_IF_ERROR(earlier_.End());
  return slices_;
}

}  // namespace cairn::worker
