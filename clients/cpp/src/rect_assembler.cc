#include "cairn/client/rect_assembler.h"

#include <algorithm>
#include <cstring>

namespace cairn::client {
namespace {

bool InGrid(const format::PartRect& rect, const Layout& layout) {
  const format::PartRect grid = layout.WholeRect();
  return rect.layer_begin < rect.layer_end && rect.layer_end <= grid.layer_end &&
         rect.head_begin < rect.head_end && rect.head_end <= grid.head_end;
}

std::string Text(const format::PartRect& r) {
  return fmt::format("layers [{}, {}), heads [{}, {})", r.layer_begin, r.layer_end, r.head_begin,
                     r.head_end);
}

}  // namespace

uint64_t RectAssembler::Bytes(const Layout& layout, const format::PartRect& want) {
  uint64_t bytes = 0;
  for (uint32_t layer = want.layer_begin; layer < want.layer_end; ++layer) {
    bytes += layout.SliceBytes(layer, want.head_begin, want.head_end);
  }
  return bytes;
}

Result<RectAssembler> RectAssembler::Create(const Layout& layout, const format::PartRect& want,
                                            std::span<std::byte> destination) {
  if (!layout.IsNative()) {
    return InvalidArgument("field 'layout': got an opaque one, expected a native one");
  }
  if (!InGrid(want, layout)) {
    return InvalidArgument("field 'want': got {}, expected a rectangle in {}", Text(want),
                           Text(layout.WholeRect()));
  }
  if (const uint64_t bytes = Bytes(layout, want); destination.size() != bytes) {
    return InvalidArgument("field 'destination': got {} bytes, expected {}", destination.size(),
                           bytes);
  }
  return RectAssembler(layout, want, destination);
}

RectAssembler::RectAssembler(const Layout& layout, const format::PartRect& want,
                             std::span<std::byte> destination)
    : layout_(&layout), want_(want), destination_(destination) {
  const uint32_t layers = want.layer_end - want.layer_begin;
  const uint32_t heads = want.head_end - want.head_begin;
  uint64_t offset = 0;
  for (uint32_t layer = want.layer_begin; layer < want.layer_end; ++layer) {
    layer_offset_.push_back(offset);
    offset += layout.SliceBytes(layer, want.head_begin, want.head_end);
  }
  layer_missing_.assign(layers, heads);
  filled_.assign(size_t{layers} * heads, false);
  missing_cells_ = layers * heads;
}

Status RectAssembler::Add(const format::PartRect& part, uint32_t layer,
                          std::span<const std::byte> slice) {
  if (!InGrid(part, *layout_)) {
    return InvalidArgument("field 'part': got {}, expected a rectangle in {}", Text(part),
                           Text(layout_->WholeRect()));
  }
  if (layer < part.layer_begin || layer >= part.layer_end) {
    return InvalidArgument("field 'layer': got {}, expected one of {}", layer, Text(part));
  }
  if (const uint64_t bytes = layout_->SliceBytes(layer, part.head_begin, part.head_end);
      slice.size() != bytes) {
    return InvalidArgument("field 'slice': got {} bytes, expected {}", slice.size(), bytes);
  }
  if (layer < want_.layer_begin || layer >= want_.layer_end) return OkStatus();

  uint64_t from_plane = 0;
  uint64_t to_plane = layer_offset_[layer - want_.layer_begin];
  for (const Plane& plane : layout_->PlanesOf(layer)) {
    const uint64_t head_bytes =
        uint64_t{layout_->block_tokens} * plane.dim * DTypeBytes(plane.dtype);
    const HeadRange has = layout_->PlaneHeads(plane, part.head_begin, part.head_end);
    const HeadRange wants = layout_->PlaneHeads(plane, want_.head_begin, want_.head_end);
    // Heads of a plane are contiguous on both sides, so one copy moves them all.
    const uint32_t begin = std::max(has.begin, wants.begin);
    const uint32_t end = std::min(has.end, wants.end);
    if (begin < end) {
      std::memcpy(destination_.data() + to_plane + (begin - wants.begin) * head_bytes,
                  slice.data() + from_plane + (begin - has.begin) * head_bytes,
                  (end - begin) * head_bytes);
    }
    from_plane += (has.end - has.begin) * head_bytes;
    to_plane += (wants.end - wants.begin) * head_bytes;
  }

  const uint32_t heads = want_.head_end - want_.head_begin;
  const uint32_t row = layer - want_.layer_begin;
  for (uint32_t head = std::max(part.head_begin, want_.head_begin);
       head < std::min(part.head_end, want_.head_end); ++head) {
    const size_t cell = size_t{row} * heads + (head - want_.head_begin);
    if (filled_[cell]) continue;
    filled_[cell] = true;
    --layer_missing_[row];
    --missing_cells_;
  }
  return OkStatus();
}

bool RectAssembler::LayerComplete(uint32_t layer) const {
  return layer >= want_.layer_begin && layer < want_.layer_end &&
         layer_missing_[layer - want_.layer_begin] == 0;
}

}  // namespace cairn::client
