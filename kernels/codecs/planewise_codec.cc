#include "kernels/codecs/planewise_codec.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/codecs/run_inline.h"

namespace cairn::codecs {
namespace {

using kernels::HalfRows;
using kernels::MutableHalfRows;

int64_t CountNonFinite(const Plane& plane, int64_t tokens) {
  int64_t count = 0;
  for (int64_t h = 0; h < plane.heads; ++h) {
    for (int64_t t = 0; t < tokens; ++t) {
      const uint16_t* row = plane.data + h * plane.head_stride + t * plane.token_stride;
      for (int64_t d = 0; d < plane.dim; ++d) count += (row[d] & 0x7c00) == 0x7c00 ? 1 : 0;
    }
  }
  return count;
}

// False: a number is NaN or infinite.
bool CopyRow(const void* from, void* to, int64_t dim) {
  std::memcpy(to, from, static_cast<size_t>(2 * dim));
  bool finite = true;
  for (int64_t d = 0; d < dim; ++d) {
    uint16_t bits;
    std::memcpy(&bits, static_cast<const std::byte*>(from) + 2 * d, 2);
    finite &= (bits & 0x7c00) != 0x7c00;
  }
  return finite;
}

std::string CheckPlane(std::string_view name, const PlaneCodec& codec, int64_t tokens,
                       int64_t heads, int64_t dim) {
  const auto got = [&](std::string_view what, int64_t value, const std::string& expected) {
    return std::string(name) + "." + std::string(what) + ": got " + std::to_string(value) +
           ", expected " + expected;
  };
  if (heads < 0 || heads > kMaxHeads) {
    return got("heads", heads, "0 to " + std::to_string(kMaxHeads));
  }
  if (heads == 0) return {};
  if (dim < 1 || dim > kernels::kMaxHeadDim) {
    return got("dim", dim, "1 to " + std::to_string(kernels::kMaxHeadDim));
  }
  const std::string why = codec.Supports(tokens, dim);
  return why.empty() ? why : std::string(name) + "." + why;
}

}  // namespace

std::string_view Name(CodecStatus status) {
  switch (status) {
    case CodecStatus::kOk:
      return "ok";
    case CodecStatus::kNonFinite:
      return "NaN or infinity in the input";
    case CodecStatus::kUnsupported:
      return "unsupported shape";
    case CodecStatus::kTooSmall:
      return "output or scratch too small";
    case CodecStatus::kCorrupt:
      return "corrupt";
  }
  return "unknown";
}

PlanewiseCodec::PlanewiseCodec(std::string name, const kernels::CodecKernels& kernels,
                               std::unique_ptr<PlaneCodec> keys, std::unique_ptr<PlaneCodec> values,
                               int64_t sink)
    : name_(std::move(name)),
      kernels_(kernels),
      keys_(std::move(keys)),
      values_(std::move(values)),
      sink_(sink) {}

std::string PlanewiseCodec::Supports(const SliceShape& shape, const SlicePlace& place) const {
  if (shape.tokens < 0 || shape.tokens > kMaxTokens) {
    return "tokens: got " + std::to_string(shape.tokens) + ", expected 0 to " +
           std::to_string(kMaxTokens);
  }
  if (place.layer < 0) return "layer: got " + std::to_string(place.layer) + ", expected 0 or more";
  if (sink_ > 0 && place.first_position < 0) {
    return "first_position: unknown, but sink=" + std::to_string(sink_) + " needs it";
  }
  std::string why = CheckPlane("k", *keys_, shape.tokens, shape.k_heads, shape.k_dim);
  if (why.empty()) why = CheckPlane("v", *values_, shape.tokens, shape.v_heads, shape.v_dim);
  return why;
}

int64_t PlanewiseCodec::SinkRows(int64_t tokens, const SlicePlace& place) const {
  return place.first_position == 0 ? std::min(sink_, tokens) : 0;
}

size_t PlanewiseCodec::HeadBytes(const PlaneCodec& codec, PlaneRole role, int64_t tokens,
                                 int64_t dim, const SlicePlace& place) const {
  const int64_t sink = SinkRows(tokens, place);
  return static_cast<size_t>(2 * sink * dim) +
         codec.HeadBytes(tokens - sink, dim, {place.layer, role, sink});
}

size_t PlanewiseCodec::MaxEncodedBytes(const SliceShape& shape, const SlicePlace& place) const {
  size_t bytes = 0;
  if (shape.k_heads > 0) {
    bytes += static_cast<size_t>(shape.k_heads) *
             HeadBytes(*keys_, PlaneRole::kKeys, shape.tokens, shape.k_dim, place);
  }
  if (shape.v_heads > 0) {
    bytes += static_cast<size_t>(shape.v_heads) *
             HeadBytes(*values_, PlaneRole::kValues, shape.tokens, shape.v_dim, place);
  }
  return bytes;
}

EncodeResult PlanewiseCodec::Encode(const Plane& k, const Plane& v, int64_t tokens,
                                    const SlicePlace& place, std::span<std::byte> out,
                                    std::span<std::byte> /*scratch*/) const {
  const SliceShape shape = ShapeOf(k, v, tokens);
  if (!Supports(shape, place).empty()) return {.status = CodecStatus::kUnsupported};
  const size_t bytes = MaxEncodedBytes(shape, place);
  if (out.size() < bytes) return {.status = CodecStatus::kTooSmall};

  const int64_t sink = SinkRows(tokens, place);
  std::byte* at = out.data();
  const auto encode_plane = [&](const Plane& plane, const PlaneCodec& codec, PlaneRole role) {
    for (int64_t h = 0; h < plane.heads; ++h) {
      const HalfRows rows{plane.data + h * plane.head_stride, tokens, plane.dim,
                          plane.token_stride};
      for (int64_t r = 0; r < sink; ++r) {
        if (!CopyRow(rows.row(r), at, plane.dim)) return false;
        at += 2 * plane.dim;
      }
      const HeadPlace head{place.layer, role, sink};
      if (!codec.EncodeHead(rows.Part(sink, tokens - sink), head, at)) return false;
      at += codec.HeadBytes(tokens - sink, plane.dim, head);
    }
    return true;
  };
  if (!encode_plane(k, *keys_, PlaneRole::kKeys) ||
      !encode_plane(v, *values_, PlaneRole::kValues)) {
    return {.status = CodecStatus::kNonFinite,
            .non_finite = CountNonFinite(k, tokens) + CountNonFinite(v, tokens)};
  }
  return {.status = CodecStatus::kOk, .bytes = bytes};
}

CodecStatus PlanewiseCodec::Decode(std::span<const std::byte> in, const MutablePlane& k,
                                   const MutablePlane& v, int64_t tokens, const SlicePlace& place,
                                   std::span<std::byte> /*scratch*/, bool streaming) const {
  const SliceShape shape = ShapeOf(k, v, tokens);
  if (!Supports(shape, place).empty()) return CodecStatus::kUnsupported;
  if (in.size() != MaxEncodedBytes(shape, place)) return CodecStatus::kCorrupt;

  const int64_t sink = SinkRows(tokens, place);
  const std::byte* at = in.data();
  const auto decode_plane = [&](const MutablePlane& plane, const PlaneCodec& codec,
                                PlaneRole role) {
    for (int64_t h = 0; h < plane.heads; ++h) {
      const MutableHalfRows rows{plane.data + h * plane.head_stride, tokens, plane.dim,
                                 plane.token_stride, streaming};
      for (int64_t r = 0; r < sink; ++r) {
        if (!CopyRow(at, rows.row(r), plane.dim)) return false;
        at += 2 * plane.dim;
      }
      const HeadPlace head{place.layer, role, sink};
      if (!codec.DecodeHead(at, head, rows.Part(sink, tokens - sink))) return false;
      at += codec.HeadBytes(tokens - sink, plane.dim, head);
    }
    return true;
  };
  const bool valid =
      decode_plane(k, *keys_, PlaneRole::kKeys) && decode_plane(v, *values_, PlaneRole::kValues);
  if (streaming) EndStreaming(kernels_);
  return valid ? CodecStatus::kOk : CodecStatus::kCorrupt;
}

}  // namespace cairn::codecs
