#include "services/cache/store/block/recoder.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "kernels/codecs/codec.h"

namespace cairn::cache {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

// One layer of a part, for the codecs.
struct Recoder::Slice {
  codecs::SliceShape shape;
  codecs::SlicePlace place;

  // The planes of a slice in half precision.
  codecs::MutablePlane Keys(uint16_t* numbers) const {
    return {.data = numbers,
            .heads = shape.k_heads,
            .dim = shape.k_dim,
            .head_stride = shape.tokens * shape.k_dim,
            .token_stride = shape.k_dim};
  }
  codecs::MutablePlane Values(uint16_t* numbers) const {
    return {.data = numbers + shape.tokens * shape.k_heads * shape.k_dim,
            .heads = shape.v_heads,
            .dim = shape.v_dim,
            .head_stride = shape.tokens * shape.v_dim,
            .token_stride = shape.v_dim};
  }
};

namespace {

codecs::Plane Const(const codecs::MutablePlane& plane) {
  return {plane.data, plane.heads, plane.dim, plane.head_stride, plane.token_stride};
}

}  // namespace

Result<PartBuffer> PartBuffer::Of(size_t capacity) {
  PartBuffer buffer;
  buffer.size_ = capacity;
  buffer.memory_.reset(
      static_cast<std::byte*>(std::aligned_alloc(kPage, (capacity + kPage - 1) / kPage * kPage)));
  if (capacity > 0 && buffer.memory_ == nullptr) {
    return Errorf(StatusCode::kResourceExhausted, "no memory for a part of {} bytes", capacity);
  }
  return buffer;
}

void PartBuffer::Free::operator()(std::byte* p) const { std::free(p); }

std::unique_ptr<const Recoder> Recoder::Create(const Layout& layout, const PartCodecs& codecs) {
  if (!codecs.IsLadder()) return nullptr;
  return std::unique_ptr<const Recoder>(new Recoder(layout, codecs));
}

Status Recoder::Check(const Layout& layout, const PartCodecs& codecs) {
  const auto recoder = Create(layout, codecs);
  if (recoder == nullptr) return OkStatus();
  uint32_t layer = 0;
  for (const LayerGroup& group : std::get<NativeLayout>(layout.form).groups) {
    const int64_t bytes = recoder->SliceOf(layer, layout.WholeRect(), true).shape.HalfBytes();
    if (bytes > kMaxLayerBytes) {
      return InvalidArgument(
          "field 'recipe': got a ladder, but layer {} of a block has {} bytes; a ladder expects at "
          "most {}",
          layer, bytes, kMaxLayerBytes);
    }
    layer += group.count;
  }
  return OkStatus();
}

Recoder::Recoder(const Layout& layout, const PartCodecs& codecs)
    : layout_(layout),
      form_{layout_, codecs.pushed, codecs.on_disk},
      on_disk_(codecs.on_disk),
      from_(codecs.rungs.front()),
      to_(codecs.rungs.back()) {
  uint32_t layer = 0;
  for (const LayerGroup& group : std::get<NativeLayout>(layout_.form).groups) {
    const codecs::SliceShape shape = SliceOf(layer, layout_.WholeRect(), true).shape;
    layer += group.count;
    if (shape.HalfBytes() == 0) continue;
    // The numbers, the slice that they come from, and what the codecs need.
    working_bytes_ = std::max<uint64_t>(
        working_bytes_, 2 * static_cast<uint64_t>(shape.HalfBytes()) +
                            std::max(from_->ScratchBytes(shape), to_->ScratchBytes(shape)));
  }
}

Recoder::Slice Recoder::SliceOf(uint32_t layer, const format::PartRect& rect, bool at_start) const {
  Slice slice;
  slice.shape.tokens = layout_.block_tokens;
  // All that codecs ask of a position is whether it is the first.
  slice.place = {.layer = layer, .first_position = at_start ? 0 : int64_t{layout_.block_tokens}};
  const std::span<const Plane> planes = layout_.PlanesOf(layer);
  if (planes.empty()) return slice;
  const auto heads = [&](const Plane& plane) {
    const HeadRange range = layout_.PlaneHeads(plane, rect.head_begin, rect.head_end);
    return int64_t{range.end} - int64_t{range.begin};
  };
  slice.shape.k_heads = heads(planes[0]);
  slice.shape.k_dim = planes[0].dim;
  slice.shape.v_heads = heads(planes[1]);
  slice.shape.v_dim = planes[1].dim;
  return slice;
}

uint64_t Recoder::MaxPartBytes(const format::PartRect& rect, bool at_start) const {
  uint64_t bytes = format::HeaderBytes(rect.layer_end - rect.layer_begin);
  for (uint32_t layer = rect.layer_begin; layer < rect.layer_end; ++layer) {
    const Slice slice = SliceOf(layer, rect, at_start);
    if (slice.shape.HalfBytes() > 0) bytes += to_->MaxEncodedBytes(slice.shape, slice.place);
  }
  return bytes;
}

uint64_t Recoder::MaxBlockBytes(bool at_start) const {
  return MaxPartBytes(layout_.WholeRect(), at_start);
}

Result<PartBuffer> Recoder::Recode(const format::PartRect& rect, std::span<const std::byte> part,
                                   bool at_start, uint64_t max_bytes) const {
  const auto header = CheckedHeader(form_, rect, part);
  if (!header.ok()) return Errorf(StatusCode::kDataLoss, "{}", Message(header.status()));
  if (header->codec == on_disk_) return PartBuffer();

  const auto too_large = [&] {
    return InvalidArgument("part of layers [{}, {}) in {}: more than {} bytes", rect.layer_begin,
                           rect.layer_end, to_->name(), max_bytes);
  };
  const uint64_t first = format::HeaderBytes(static_cast<uint32_t>(header->slices.size()));
  if (first > max_bytes) return too_large();
  CAIRN_ASSIGN_OR_RETURN(PartBuffer out,
                         PartBuffer::Of(std::min(MaxPartBytes(rect, at_start), max_bytes)));
  std::vector<uint64_t> lengths, hashes;
  std::vector<std::byte> copy, scratch;
  std::vector<uint16_t> numbers;
  size_t at = first;
  for (size_t i = 0; i < header->slices.size(); ++i) {
    const format::SliceEntry& entry = header->slices[i];
    const auto layer = static_cast<uint32_t>(rect.layer_begin + i);
    const auto source = part.subspan(entry.offset, entry.length);
    copy.assign(source.begin(), source.end());
    if (!format::VerifySlice(entry, copy)) {
      return Errorf(StatusCode::kDataLoss, "slice of layer {}: bytes do not match their checksum",
                    layer);
    }
    const Slice slice = SliceOf(layer, rect, at_start);
    size_t length = 0;
    if (entry.length > 0) {
      numbers.resize(static_cast<size_t>(slice.shape.HalfBytes()) / sizeof(uint16_t));
      scratch.resize(std::max(from_->ScratchBytes(slice.shape), to_->ScratchBytes(slice.shape)));
      const codecs::MutablePlane k = slice.Keys(numbers.data());
      const codecs::MutablePlane v = slice.Values(numbers.data());
      const codecs::CodecStatus decoded =
          from_->Decode(copy, k, v, slice.shape.tokens, slice.place, scratch);
      if (decoded != codecs::CodecStatus::kOk) {
        return Errorf(StatusCode::kDataLoss, "slice of layer {}, {}: {}", layer, from_->name(),
                      codecs::Name(decoded));
      }
      if (to_->MaxEncodedBytes(slice.shape, slice.place) > out.bytes().size() - at) {
        return too_large();
      }
      const codecs::EncodeResult encoded = to_->Encode(
          Const(k), Const(v), slice.shape.tokens, slice.place, out.bytes().subspan(at), scratch);
      if (encoded.status != codecs::CodecStatus::kOk) {
        return InvalidArgument("slice of layer {}, {}: {} numbers are not finite ({})", layer,
                               to_->name(), encoded.non_finite, codecs::Name(encoded.status));
      }
      length = encoded.bytes;
    }
    lengths.push_back(length);
    hashes.push_back(Xxh3(out.bytes().subspan(at, length)));
    at += length;
  }
  out.Shrink(at);
  format::WriteHeader(out.bytes(), on_disk_, rect, static_cast<uint16_t>(layout_.block_tokens),
                      lengths, hashes);
  return out;
}

}  // namespace cairn::cache
