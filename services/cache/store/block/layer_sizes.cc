#include "services/cache/store/block/layer_sizes.h"

#include <algorithm>

namespace cairn::cache {

LayerSizes::LayerSizes(const Layout& layout) {
  if (!layout.IsNative()) return;
  const uint32_t heads = layout.KvHeads();
  Sums sums;
  uint32_t layer = 0;
  for (const LayerGroup& from : std::get<NativeLayout>(layout.form).groups) {
    Group group{.begin = layer, .end = layer + from.count};
    for (const Plane& plane : from.planes) {
      const uint64_t head = uint64_t{layout.block_tokens} * plane.dim * DTypeBytes(plane.dtype);
      // A plane with fewer heads than the grid belongs whole to the part that holds head 0.
      (plane.heads == heads ? group.per_head : group.at_head_0) +=
          plane.heads == heads ? head : head * plane.heads;
    }
    groups_.push_back(group);
    sums_.push_back(sums);
    sums.per_head += group.per_head * from.count;
    sums.at_head_0 += group.at_head_0 * from.count;
    if (group.per_head > 0) sums.layers_per_head += from.count;
    if (group.per_head + group.at_head_0 > 0) sums.layers_at_head_0 += from.count;
    layer = group.end;
  }
}

std::span<const LayerSizes::Group> LayerSizes::From(uint32_t layer) const {
  const auto it = std::upper_bound(groups_.begin(), groups_.end(), layer,
                                   [](uint32_t at, const Group& group) { return at < group.end; });
  return std::span(groups_).subspan(static_cast<size_t>(it - groups_.begin()));
}

LayerSizes::Sums LayerSizes::Before(uint32_t layer) const {
  if (layer == 0) return {};
  const Group& group = From(layer - 1).front();
  Sums sums = sums_[static_cast<size_t>(&group - groups_.data())];
  const uint32_t layers = layer - group.begin;
  sums.per_head += group.per_head * layers;
  sums.at_head_0 += group.at_head_0 * layers;
  if (group.per_head > 0) sums.layers_per_head += layers;
  if (group.per_head + group.at_head_0 > 0) sums.layers_at_head_0 += layers;
  return sums;
}

LayerSizes::Total LayerSizes::Of(const format::PartRect& rect) const {
  const Sums end = Before(rect.layer_end);
  const Sums begin = Before(rect.layer_begin);
  const uint32_t heads = uint32_t{rect.head_end} - rect.head_begin;
  Total total{.bytes = (end.per_head - begin.per_head) * heads,
              .layers = end.layers_per_head - begin.layers_per_head};
  if (rect.head_begin == 0) {
    total.bytes += end.at_head_0 - begin.at_head_0;
    total.layers = end.layers_at_head_0 - begin.layers_at_head_0;
  }
  return total;
}

}  // namespace cairn::cache
