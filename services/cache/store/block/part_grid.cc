#include "services/cache/store/block/part_grid.h"

#include <algorithm>
#include <string>

#include "common/format/selected_slice.h"

namespace cairn::cache {
namespace {

std::string Range(uint64_t least, uint64_t most) {
  return least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most);
}

// The smallest and the largest size of slices with `heads` heads and `raw` raw bytes in all, of
// which `layers` have bytes.
struct Bytes {
  uint64_t least = 0, most = 0;
};
Bytes EncodedBytes(const PartForm& form, format::Codec codec, uint32_t heads,
                   const LayerSizes::Total& raw) {
  if (form.selected) {
    const uint32_t tokens = form.layout.block_tokens;
    const uint64_t least = raw.layers * format::LeastSelectedBytes(heads, tokens);
    return {least, raw.layers * format::MostSelectedBytes(heads, tokens, 0) + raw.bytes};
  }
  if (codec == format::Codec::kRaw) return {raw.bytes, raw.bytes};
  // An entropy coder that gains nothing says so in a byte.
  return {raw.layers, raw.bytes + raw.layers};
}

Status CheckAgainstForm(const PartForm& form, const format::PartRect& rect,
                        const format::PartHeader& header, uint64_t bytes) {
  const Layout& layout = form.layout;
  if (header.rect != rect) {
    return InvalidArgument(
        "part header: got layers [{}, {}) heads [{}, {}), expected layers [{}, {}) heads [{}, {})",
        header.rect.layer_begin, header.rect.layer_end, header.rect.head_begin,
        header.rect.head_end, rect.layer_begin, rect.layer_end, rect.head_begin, rect.head_end);
  }
  if (header.total_bytes != bytes) {
    return InvalidArgument("part header, field 'total_bytes': got {}, expected {}",
                           header.total_bytes, bytes);
  }
  if (const uint32_t tokens = layout.BlockTokensOf(layout.PoolOf(rect));
      header.block_tokens != tokens) {
    return InvalidArgument("part header, field 'block_tokens': got {}, expected {}",
                           header.block_tokens, tokens);
  }
  if (header.codec != form.codec && header.codec != form.or_codec) {
    return InvalidArgument("part header, field 'codec': got {}, expected {}",
                           static_cast<int>(header.codec), static_cast<int>(form.codec));
  }
  if (header.selected != form.selected) {
    return InvalidArgument("part header, field 'flags': got {}, expected {}: the recipe {}",
                           header.selected ? 1 : 0, form.selected ? 1 : 0,
                           form.selected ? "selects rows" : "has no selection");
  }
  if (!layout.IsNative()) return OkStatus();
  uint32_t layer = rect.layer_begin;
  for (const LayerSizes::Group& group : form.sizes->From(layer)) {
    const uint64_t raw = group.SliceBytes(rect.head_begin, rect.head_end);
    const Bytes expected =
        EncodedBytes(form, header.codec, uint32_t{rect.head_end} - rect.head_begin,
                     {.bytes = raw, .layers = raw > 0 ? 1u : 0u});
    for (; layer < std::min<uint32_t>(group.end, rect.layer_end); ++layer) {
      const uint64_t got = header.slices[layer - rect.layer_begin].length;
      if (got >= expected.least && got <= expected.most) continue;
      return InvalidArgument("part header, slice of layer {}: got {} bytes, expected {}", layer,
                             got, Range(expected.least, expected.most));
    }
    if (layer == rect.layer_end) break;
  }
  return OkStatus();
}

}  // namespace

uint32_t CommonCells(const format::PartRect& a, const format::PartRect& b) {
  if (!a.Overlaps(b)) return 0;
  const uint32_t layers =
      std::min(a.layer_end, b.layer_end) - std::max(a.layer_begin, b.layer_begin);
  const uint32_t heads = std::min(a.head_end, b.head_end) - std::max(a.head_begin, b.head_begin);
  return layers * heads;
}

PartFit FitPart(const format::PartRect& part, std::span<const format::PartRect> taken) {
  uint32_t common = 0;
  for (const auto& other : taken) common += CommonCells(part, other);
  if (common == 0) return PartFit::kFree;
  return common == part.Cells() ? PartFit::kCovered : PartFit::kOverlaps;
}

Status ValidatePart(const PartForm& form, const format::PartRect& rect, uint64_t bytes,
                    uint32_t max_bytes) {
  const Layout& layout = form.layout;
  if (rect.layer_begin >= rect.layer_end || rect.layer_end > layout.Layers()) {
    return InvalidArgument("field 'part': got layers [{}, {}), expected a range within [0, {})",
                           rect.layer_begin, rect.layer_end, layout.Layers());
  }
  if (rect.head_begin >= rect.head_end || rect.head_end > layout.KvHeads()) {
    return InvalidArgument("field 'part': got heads [{}, {}), expected a range within [0, {})",
                           rect.head_begin, rect.head_end, layout.KvHeads());
  }
  if (bytes == 0 || bytes > max_bytes) {
    return InvalidArgument("field 'bytes': got {}, expected 1 to {}", bytes, max_bytes);
  }
  if (layout.IsNative()) {
    const uint64_t header = format::HeaderBytes(uint32_t{rect.layer_end} - rect.layer_begin);
    const Bytes slices = EncodedBytes(form, form.codec, uint32_t{rect.head_end} - rect.head_begin,
                                      form.sizes->Of(rect));
    const uint64_t least = header + slices.least;
    const uint64_t most = header + slices.most;
    if (bytes < least || bytes > most) {
      return InvalidArgument("field 'bytes': got {}, expected {} for this part of the layout",
                             bytes, Range(least, most));
    }
    return OkStatus();
  }
  if (rect.head_end - rect.head_begin != 1) {
    return InvalidArgument(
        "field 'part': got heads [{}, {}), expected one head of an opaque layout", rect.head_begin,
        rect.head_end);
  }
  const uint32_t pool = layout.PoolOf(rect);
  if (const format::PartRect whole = layout.WholeOf(pool);
      rect.layer_end > whole.layer_end || rect.head_end > whole.head_end) {
    return InvalidArgument(
        "field 'part': got layers [{}, {}) heads [{}, {}), expected a part of pool '{}': layers "
        "[{}, {}), a head of [0, {})",
        rect.layer_begin, rect.layer_end, rect.head_begin, rect.head_end, layout.Pools()[pool].name,
        whole.layer_begin, whole.layer_end, whole.head_end);
  }
  const uint64_t header = format::HeaderBytes(1);
  const uint64_t largest = header + layout.MaxPartBytesOf(pool);
  if (bytes <= header || bytes > largest) {
    return InvalidArgument("field 'bytes': got {}, expected {} to {}", bytes, header + 1, largest);
  }
  return OkStatus();
}

void ClearHeader(const format::PartRect& rect, std::span<std::byte> part) {
  const uint64_t header = format::HeaderBytes(uint32_t{rect.layer_end} - rect.layer_begin);
  std::fill_n(part.begin(), std::min<uint64_t>(header, part.size()), std::byte{0});
}

Result<format::PartHeader> CheckedHeader(const PartForm& form, const format::PartRect& rect,
                                         std::span<const std::byte> part) {
  return CheckedHeader(form, rect, part, part.size());
}

Result<format::PartHeader> CheckedHeader(const PartForm& form, const format::PartRect& rect,
                                         std::span<const std::byte> head, uint64_t bytes) {
  CAIRN_ASSIGN_OR_RETURN(format::PartHeader header, format::ParseHeader(head));
  CAIRN_RETURN_IF_ERROR(CheckAgainstForm(form, rect, header, bytes));
  return header;
}

std::optional<uint64_t> MostSliceBytes(const PartForm& form, const format::PartRect& rect) {
  if (!form.layout.IsNative()) return std::nullopt;
  return EncodedBytes(form, form.codec, uint32_t{rect.head_end} - rect.head_begin,
                      form.sizes->Of(rect))
      .most;
}

Status VerifyPartBytes(const PartForm& form, const format::PartRect& rect,
                       std::span<const std::byte> part) {
  CAIRN_ASSIGN_OR_RETURN(const format::PartHeader header, CheckedHeader(form, rect, part));
  for (size_t i = 0; i < header.slices.size(); ++i) {
    const format::SliceEntry& slice = header.slices[i];
    if (!format::VerifySlice(slice, part.subspan(slice.offset, slice.length))) {
      return Errorf(StatusCode::kDataLoss, "slice of layer {}: bytes do not match their checksum",
                    rect.layer_begin + i);
    }
  }
  return OkStatus();
}

}  // namespace cairn::cache
