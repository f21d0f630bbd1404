#include "services/cache/block/recoder.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "common/recipe/recipe.h"
#include "kernels/codecs/codec.h"

namespace cairn::cache {
namespace {

constexpr size_t kPage = 4096;

// Keys and values of half precision, or nothing.
Status CheckLayout(const Layout& layout) {
  for (uint32_t layer = 0; layer < layout.Layers(); ++layer) {
    const std::span<const Plane> planes = layout.PlanesOf(layer);
    if (planes.empty()) continue;
    const bool keys_and_values =
        planes.size() == 2 && planes[0].name == "k" && planes[1].name == "v";
    if (!keys_and_values) {
      return InvalidArgument(
          "field 'recipe': a ladder needs planes 'k' and 'v', in this order; layer {} has others",
          layer);
    }
    for (const Plane& plane : planes) {
      if (plane.dtype == DType::kF16) continue;
      return InvalidArgument(
          "field 'recipe': a ladder needs numbers of f16; layer {}, plane '{}': {}", layer,
          plane.name, Name(plane.dtype));
    }
  }
  return OkStatus();
}

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

PartBuffer::PartBuffer(size_t capacity)
    : memory_(static_cast<std::byte*>(
          std::aligned_alloc(kPage, (capacity + kPage - 1) / kPage * kPage))),
      size_(capacity) {
  CAIRN_CHECK(memory_ != nullptr);
}

void PartBuffer::Free::operator()(std::byte* p) const { std::free(p); }

Result<std::unique_ptr<const Recoder>> Recoder::Create(const NamespaceSpec& spec) {
  CAIRN_ASSIGN_OR_RETURN(const PartCodecs ids, PartCodecsOf(spec));
  if (!ids.IsLadder()) return std::unique_ptr<const Recoder>();
  CAIRN_RETURN_IF_ERROR(CheckLayout(spec.layout));
  CAIRN_ASSIGN_OR_RETURN(const Recipe recipe, ParseRecipe(spec.recipe));
  auto recoder = std::unique_ptr<const Recoder>(new Recoder(
      spec, ids, recipe.CodecOf(TierKind::kHost).Make(), recipe.CodecOf(TierKind::kDisk).Make()));
  for (uint32_t layer = 0; layer < spec.layout.Layers(); ++layer) {
    const Slice slice = recoder->SliceOf(layer, spec.layout.WholeRect(), true);
    for (const codecs::Codec* codec : {recoder->from_.get(), recoder->to_.get()}) {
      const std::string why = codec->Supports(slice.shape, slice.place);
      if (why.empty()) continue;
      return InvalidArgument("field 'recipe': '{}' cannot store layer {}: {}", codec->name(), layer,
                             why);
    }
  }
  return recoder;
}

Recoder::Recoder(const NamespaceSpec& spec, const PartCodecs& ids,
                 std::unique_ptr<const codecs::Codec> from, std::unique_ptr<const codecs::Codec> to)
    : layout_(spec.layout),
      ids_(ids),
      form_{layout_, ids.pushed, ids.on_disk},
      from_(std::move(from)),
      to_(std::move(to)) {
  CAIRN_CHECK(from_ != nullptr && to_ != nullptr);  // A parsed recipe's codecs exist.
}

Recoder::~Recoder() = default;

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
                                   bool at_start) const {
  const auto header = CheckedHeader(form_, rect, part);
  if (!header.ok()) return Errorf(StatusCode::kDataLoss, "{}", Message(header.status()));
  if (header->codec == ids_.on_disk) return PartBuffer();

  PartBuffer out(MaxPartBytes(rect, at_start));
  std::vector<uint64_t> lengths, hashes;
  std::vector<std::byte> copy, scratch;
  std::vector<uint16_t> numbers;
  size_t at = format::HeaderBytes(static_cast<uint32_t>(header->slices.size()));
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
  format::WriteHeader(out.bytes(), ids_.on_disk, rect, static_cast<uint16_t>(layout_.block_tokens),
                      lengths, hashes);
  return out;
}

}  // namespace cairn::cache
