#include "kernels/codecs/cachegen/cachegen_codec.h"

#include <algorithm>
#include <cstring>

#include "kernels/codecs/cachegen/rans.h"
#include "kernels/codecs/multiple.h"
#include "kernels/codecs/run_inline.h"

namespace cairn::codecs {
namespace {

using kernels::HalfRows;
using kernels::kLatticeZero;
using kernels::MutableHalfRows;

constexpr int kStreams = 2;  // A plane's channels, halved.
constexpr std::byte kCoded{0};
constexpr std::byte kRaw{1};
constexpr size_t kModeBytes = 1;

// The head's fixed part: sink rows, step, anchors' class, channels' classes.
struct HeadHeader {
  int64_t sink, dim;
  size_t StepAt() const { return static_cast<size_t>(2 * sink * dim); }
  size_t AnchorClassAt() const { return StepAt() + 2; }
  size_t ClassesAt() const { return StepAt() + 3; }
  size_t Bytes() const { return ClassesAt() + static_cast<size_t>(dim / 2); }
};

// Where the window of classes begins: halving the step doubles the numbers, and a class stands for
// sqrt(2) of them.
int ClassBase(int64_t step64) {
  int base = 0;
  for (; step64 < 4; step64 *= 2) base += 2;
  return base;
}

// The facts about a plane that both directions need.
struct PlaneLayout {
  int64_t heads = 0, rows = 0, dim = 0;  // Rows without the sink.
  HeadHeader header{};
  int class_base = 0;
  size_t LengthsAt() const { return 0; }
  size_t HeadAt(int64_t h) const { return 4 * kStreams + static_cast<size_t>(h) * header.Bytes(); }
  size_t StreamsAt() const { return HeadAt(heads); }
  int64_t Numbers() const { return heads * rows * dim; }
};

PlaneLayout LayoutOf(int64_t heads, int64_t tokens, int64_t dim, int64_t sink, int64_t step64) {
  return {heads, tokens - sink, dim, {sink, dim}, ClassBase(step64)};
}

bool FiniteRow(const uint16_t* row, int64_t dim) {
  bool finite = true;
  for (int64_t d = 0; d < dim; ++d) finite &= (row[d] & 0x7c00) != 0x7c00;
  return finite;
}

int64_t CountNonFinite(const kernels::CodecKernels& kernels, const Plane& p, int64_t tokens) {
  kernels::InlineStream stream;
  int64_t count = 0;
  for (int64_t h = 0; h < p.heads; ++h) {
    kernels.count_non_finite(stream,
                             {{p.data + h * p.head_stride, tokens, p.dim, p.token_stride}, &count});
  }
  return count;
}

int64_t FloorDivide(int64_t a, int64_t b) { return a >= 0 ? a / b : -((-a + b - 1) / b); }

// The anchors and classes (within the window) of one head, from its numbers [rows][dim] (with
// kLatticeZero added).
struct HeadModel {
  int32_t anchors[kernels::kMaxHeadDim];
  int classes[kernels::kMaxHeadDim];
  int anchor_class = 0;

  HeadModel(const uint16_t* numbers, int64_t rows, int64_t dim, int base) {
    int64_t sum[kernels::kMaxHeadDim] = {}, squares[kernels::kMaxHeadDim] = {};
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t d = 0; d < dim; ++d) {
        const int64_t n = numbers[r * dim + d] - kLatticeZero;
        sum[d] += n;
        squares[d] += n * n;
      }
    }
    int64_t anchor_squares = 0;
    for (int64_t d = 0; d < dim; ++d) {
      const int64_t mean = FloorDivide(2 * sum[d] + rows, 2 * rows);
      anchors[d] = static_cast<int32_t>(mean);
      anchor_squares += mean * mean;
      const int64_t spread = squares[d] - 2 * mean * sum[d] + rows * mean * mean;
      classes[d] = rans::ClassOf(spread, rows, base) - base;
    }
    anchor_class = rans::ClassOf(anchor_squares, dim, base) - base;
  }
};

void Store32(std::byte* p, size_t v) {
  const auto v32 = static_cast<uint32_t>(v);
  std::memcpy(p, &v32, 4);
}
uint32_t Load32(const std::byte* p) {
  uint32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

std::byte* Align(std::byte* p) { return p + (64 - reinterpret_cast<uintptr_t>(p) % 64) % 64; }

size_t StageBytes(int64_t numbers, int64_t anchors) {
  return static_cast<size_t>(numbers + anchors) * rans::kMostBytes + 16 * kStreams;
}

// Bytes that may be read behind a stream's end, see rans::Stream.
size_t PaddingBytes(const SliceShape& shape) {
  const int64_t longest = std::max({shape.tokens, shape.k_dim, shape.v_dim});
  return static_cast<size_t>(longest) * rans::kMostBytes + 64;
}

// Writes a plane's header and streams to `out`, which has room for `room` bytes. 0: too long.
// `numbers`: every head's, [heads][rows][dim]; `stage`: StageBytes of the plane.
size_t EncodeStreams(const PlaneLayout& layout, const uint16_t* numbers, std::byte* out,
                     size_t room, std::byte* stage) {
  if (layout.StreamsAt() > room) return 0;
  const int64_t half = layout.dim / kStreams;
  const size_t stage_bytes = StageBytes(layout.Numbers(), layout.heads * layout.dim) / kStreams;
  std::byte* const ends[kStreams] = {stage + stage_bytes, stage + kStreams * stage_bytes};
  rans::Encoder encoders[kStreams] = {rans::Encoder(ends[0]), rans::Encoder(ends[1])};
  const rans::Class* const all = rans::Classes() + layout.class_base;
  for (int64_t h = layout.heads - 1; h >= 0; --h) {
    const uint16_t* head = numbers + h * layout.rows * layout.dim;
    const HeadModel model(head, layout.rows, layout.dim, layout.class_base);
    for (int64_t d = half - 1; d >= 0; --d) {
      // Both streams in turn: their steps overlap.
      const rans::Class low = all[model.classes[d]], high = all[model.classes[half + d]];
      const int32_t low_zero = kLatticeZero + model.anchors[d];
      const int32_t high_zero = kLatticeZero + model.anchors[half + d];
      for (int64_t r = layout.rows - 1; r >= 0; --r) {
        const uint16_t* row = head + r * layout.dim + d;
        encoders[0].Put(low, row[0] - low_zero);
        encoders[1].Put(high, row[half] - high_zero);
      }
    }
    const rans::Class anchor = all[model.anchor_class];
    for (int64_t d = half - 1; d >= 0; --d) {
      encoders[0].Put(anchor, model.anchors[d]);
      encoders[1].Put(anchor, model.anchors[half + d]);
    }
    std::byte* header = out + layout.HeadAt(h);
    header[layout.header.AnchorClassAt()] = static_cast<std::byte>(model.anchor_class);
    for (int64_t d = 0; d < layout.dim; d += 2) {
      header[layout.header.ClassesAt() + static_cast<size_t>(d / 2)] =
          static_cast<std::byte>(model.classes[d] | model.classes[d + 1] << 4);
    }
  }
  size_t at = layout.StreamsAt();
  for (int s = 0; s < kStreams; ++s) {
    const std::byte* begin = encoders[s].Finish();
    const auto length = static_cast<size_t>(ends[s] - begin);
    if (length > room - at) return 0;
    std::memcpy(out + at, begin, length);
    Store32(out + layout.LengthsAt() + static_cast<size_t>(4 * s), length);
    at += length;
  }
  return at;
}

// The streams of one or two planes of one shape, decoded in lockstep.
template <int kPlanes>
bool DecodeStreams(const PlaneLayout* layouts, const std::byte* const* headers,
                   rans::Stream* streams, uint16_t* const* numbers) {
  constexpr int kAll = kPlanes * kStreams;
  const PlaneLayout& layout = layouts[0];
  const rans::Class* windows[kPlanes];
  for (int p = 0; p < kPlanes; ++p) windows[p] = rans::Classes() + layouts[p].class_base;
  const int64_t half = layout.dim / kStreams;
  for (int64_t h = 0; h < layout.heads; ++h) {
    uint16_t anchors[kAll][kernels::kMaxHeadDim / kStreams];
    const rans::Class* classes[kAll];
    uint16_t* out[kAll];
    int32_t bases[kAll] = {};
    const std::byte* head[kPlanes];
    for (int p = 0; p < kPlanes; ++p) {
      head[p] = headers[p] + layout.HeadAt(h);
      const int anchor_class = static_cast<int>(head[p][layout.header.AnchorClassAt()]);
      if (anchor_class >= rans::kWindow) return false;
      for (int s = 0; s < kStreams; ++s) {
        classes[p * kStreams + s] = windows[p] + anchor_class;
        out[p * kStreams + s] = anchors[p * kStreams + s];
      }
    }
    rans::Decode<kAll>(streams, classes, bases, half, out, 1);
    for (int j = 0; j < kAll; ++j) {
      if (streams[j].at > streams[j].end) return false;
    }
    for (int64_t d = 0; d < half; ++d) {
      for (int j = 0; j < kAll; ++j) {
        const int64_t channel = j % kStreams * half + d;
        const auto pair = static_cast<int>(
            head[j / kStreams][layout.header.ClassesAt() + static_cast<size_t>(channel / 2)]);
        classes[j] = windows[j / kStreams] + (channel % 2 == 0 ? pair & 15 : pair >> 4);
        bases[j] = anchors[j][d] - kLatticeZero;
        out[j] = numbers[j / kStreams] + h * layout.rows * layout.dim + channel;
      }
      rans::Decode<kAll>(streams, classes, bases, layout.rows, out, layout.dim);
      for (int j = 0; j < kAll; ++j) {
        if (streams[j].at > streams[j].end) return false;
      }
    }
  }
  for (int j = 0; j < kAll; ++j) {
    if (!streams[j].AtEnd()) return false;
  }
  return true;
}

std::string CheckPlane(std::string_view name, int64_t heads, int64_t dim) {
  const std::string prefix(name);
  if (heads < 0 || heads > kMaxHeads) {
    return prefix + ".heads: got " + std::to_string(heads) + ", expected 0 to " +
           std::to_string(kMaxHeads);
  }
  if (heads == 0) return {};
  if (dim < 1 || dim > kernels::kMaxHeadDim) {
    return prefix + ".dim: got " + std::to_string(dim) + ", expected 1 to " +
           std::to_string(kernels::kMaxHeadDim);
  }
  const std::string why = CheckMultiple(dim, 16);
  return why.empty() ? why : prefix + "." + why;
}

}  // namespace

std::string CacheGenCodec::Supports(const SliceShape& shape, const SlicePlace& place) const {
  if (shape.tokens < 0 || shape.tokens > kMaxTokens) {
    return "tokens: got " + std::to_string(shape.tokens) + ", expected 0 to " +
           std::to_string(kMaxTokens);
  }
  if (place.layer < 0) return "layer: got " + std::to_string(place.layer) + ", expected 0 or more";
  if (sink_ > 0 && place.first_position < 0) {
    return "first_position: unknown, but sink=" + std::to_string(sink_) + " needs it";
  }
  std::string why = CheckPlane("k", shape.k_heads, shape.k_dim);
  if (why.empty()) why = CheckPlane("v", shape.v_heads, shape.v_dim);
  return why;
}

size_t CacheGenCodec::MaxEncodedBytes(const SliceShape& shape, const SlicePlace&) const {
  return kModeBytes + static_cast<size_t>(shape.HalfBytes());
}

size_t CacheGenCodec::ScratchBytes(const SliceShape& shape) const {
  // Encode: the numbers, then the stage of a plane. Decode: the numbers, then all streams, which
  // together are no longer than the numbers are, with what may be read behind them.
  const int64_t anchors = shape.k_heads * shape.k_dim + shape.v_heads * shape.v_dim;
  return 2 * static_cast<size_t>(shape.HalfBytes()) + 192 +
         std::max(StageBytes(shape.tokens * anchors, anchors), 2 * kStreams * PaddingBytes(shape));
}

EncodeResult CacheGenCodec::Encode(const Plane& k, const Plane& v, int64_t tokens,
                                   const SlicePlace& place, std::span<std::byte> out,
                                   std::span<std::byte> scratch) const {
  const SliceShape shape = ShapeOf(k, v, tokens);
  if (!Supports(shape, place).empty()) return {.status = CodecStatus::kUnsupported};
  const size_t most = MaxEncodedBytes(shape, place);
  if (out.size() < most || scratch.size() < ScratchBytes(shape)) {
    return {.status = CodecStatus::kTooSmall};
  }
  const int64_t sink = place.first_position == 0 ? std::min(sink_, tokens) : 0;
  auto* const numbers = reinterpret_cast<uint16_t*>(Align(scratch.data()));
  std::byte* const stage = Align(scratch.data() + 64 + static_cast<size_t>(shape.HalfBytes()));

  size_t at = kModeBytes;
  bool finite = true;
  const Plane* const planes[2] = {&k, &v};
  for (int p = 0; p < 2 && at != 0 && finite; ++p) {
    const Plane& plane = *planes[p];
    const PlaneLayout layout = LayoutOf(plane.heads, tokens, plane.dim, sink, step64_[p]);
    if (plane.heads == 0) continue;
    if (layout.rows == 0 || at + layout.StreamsAt() > most) {
      at = 0;
      break;
    }
    std::byte* const begin = out.data() + at;
    for (int64_t h = 0; h < plane.heads && finite; ++h) {
      const HalfRows rows{plane.data + h * plane.head_stride, tokens, plane.dim,
                          plane.token_stride};
      std::byte* header = begin + layout.HeadAt(h);
      for (int64_t r = 0; r < sink; ++r) {
        finite = finite && FiniteRow(rows.row(r), plane.dim);
        std::memcpy(header + 2 * r * plane.dim, rows.row(r), static_cast<size_t>(2 * plane.dim));
      }
      uint16_t step = 0;
      finite = finite && EncodeLattice(kernels_, rows.Part(sink, layout.rows), step64_[p], &step,
                                       numbers + h * layout.rows * layout.dim);
      std::memcpy(header + layout.header.StepAt(), &step, 2);
    }
    if (!finite) break;
    const size_t bytes = EncodeStreams(layout, numbers, begin, most - at, stage);
    at = bytes == 0 ? 0 : at + bytes;
  }
  if (at == 0) {
    // Nothing is gained, or there are no rows to code.
    finite = CountNonFinite(kernels_, k, tokens) + CountNonFinite(kernels_, v, tokens) == 0;
  }
  if (!finite) {
    return {
        .status = CodecStatus::kNonFinite,
        .non_finite = CountNonFinite(kernels_, k, tokens) + CountNonFinite(kernels_, v, tokens)};
  }
  if (at != 0) {
    out[0] = kCoded;
    return {.status = CodecStatus::kOk, .bytes = at};
  }
  out[0] = kRaw;
  std::byte* to = out.data() + kModeBytes;
  for (const Plane* plane : planes) {
    const auto row_bytes = static_cast<size_t>(2 * plane->dim);
    for (int64_t h = 0; h < plane->heads; ++h) {
      for (int64_t t = 0; t < tokens; ++t, to += row_bytes) {
        std::memcpy(to, plane->data + h * plane->head_stride + t * plane->token_stride, row_bytes);
      }
    }
  }
  return {.status = CodecStatus::kOk, .bytes = most};
}

namespace {

// A slice that was stored as it came, since coding would have made it larger.
CodecStatus DecodeRaw(std::span<const std::byte> in, const MutablePlane* const (&planes)[2],
                      int64_t tokens) {
  const std::byte* from = in.data();
  for (const MutablePlane* plane : planes) {
    const auto row_bytes = static_cast<size_t>(2 * plane->dim);
    for (int64_t h = 0; h < plane->heads; ++h) {
      for (int64_t t = 0; t < tokens; ++t, from += row_bytes) {
        uint16_t* row = plane->data + h * plane->head_stride + t * plane->token_stride;
        std::memcpy(row, from, row_bytes);
        if (!FiniteRow(row, plane->dim)) return CodecStatus::kCorrupt;
      }
    }
  }
  return CodecStatus::kOk;
}

}  // namespace

CodecStatus CacheGenCodec::Decode(std::span<const std::byte> in, const MutablePlane& k,
                                  const MutablePlane& v, int64_t tokens, const SlicePlace& place,
                                  std::span<std::byte> scratch, bool streaming) const {
  const SliceShape shape = ShapeOf(k, v, tokens);
  if (!Supports(shape, place).empty()) return CodecStatus::kUnsupported;
  if (scratch.size() < ScratchBytes(shape)) return CodecStatus::kTooSmall;
  const size_t most = MaxEncodedBytes(shape, place);
  if (in.empty() || in.size() > most) return CodecStatus::kCorrupt;
  const MutablePlane* const planes[2] = {&k, &v};
  if (in[0] == kRaw) {
    return in.size() == most ? DecodeRaw(in.subspan(kModeBytes), planes, tokens)
                             : CodecStatus::kCorrupt;
  }
  const int64_t sink = place.first_position == 0 ? std::min(sink_, tokens) : 0;
  if (in[0] != kCoded || tokens - sink <= 0) return CodecStatus::kCorrupt;

  // Streams are copied with zeros behind them, so that reading needs no check at every word.
  auto* numbers = reinterpret_cast<uint16_t*>(Align(scratch.data()));
  std::byte* copy = Align(scratch.data() + 64 + static_cast<size_t>(shape.HalfBytes()));
  const size_t padding = PaddingBytes(shape);
  PlaneLayout layouts[2];
  const std::byte* headers[2];
  rans::Stream streams[2 * kStreams];
  uint16_t* plane_numbers[2];
  size_t at = kModeBytes;
  for (int p = 0; p < 2; ++p) {
    const MutablePlane& plane = *planes[p];
    layouts[p] = LayoutOf(plane.heads, tokens, plane.dim, sink, step64_[p]);
    headers[p] = in.data() + at;
    plane_numbers[p] = numbers;
    if (plane.heads == 0) continue;
    numbers += layouts[p].Numbers();
    if (layouts[p].StreamsAt() > in.size() - at) return CodecStatus::kCorrupt;
    at += layouts[p].StreamsAt();
    for (int s = 0; s < kStreams; ++s) {
      const size_t length = Load32(headers[p] + layouts[p].LengthsAt() + 4 * s);
      if (length < 4 || length % 2 != 0 || length > in.size() - at) return CodecStatus::kCorrupt;
      std::memcpy(copy, in.data() + at, length);
      std::memset(copy + length, 0, padding);
      streams[p * kStreams + s] = rans::Stream::Open(copy, copy + length);
      copy += length + padding;
      at += length;
    }
  }
  if (at != in.size()) return CodecStatus::kCorrupt;

  bool good = true;
  if (k.heads == v.heads && k.dim == v.dim && k.heads > 0) {
    good = DecodeStreams<2>(layouts, headers, streams, plane_numbers);
  } else {
    for (int p = 0; p < 2 && good; ++p) {
      if (planes[p]->heads == 0) continue;
      good = DecodeStreams<1>(layouts + p, headers + p, streams + p * kStreams, plane_numbers + p);
    }
  }
  if (!good) return CodecStatus::kCorrupt;

  for (int p = 0; p < 2 && good; ++p) {
    const MutablePlane& plane = *planes[p];
    const PlaneLayout& layout = layouts[p];
    for (int64_t h = 0; h < plane.heads && good; ++h) {
      const MutableHalfRows rows{plane.data + h * plane.head_stride, tokens, plane.dim,
                                 plane.token_stride, streaming};
      const std::byte* header = headers[p] + layout.HeadAt(h);
      for (int64_t r = 0; r < sink; ++r) {
        std::memcpy(rows.row(r), header + 2 * r * plane.dim, static_cast<size_t>(2 * plane.dim));
        good = good && FiniteRow(rows.row(r), plane.dim);
      }
      uint16_t step;
      std::memcpy(&step, header + layout.header.StepAt(), 2);
      good = good && DecodeLattice(kernels_, plane_numbers[p] + h * layout.rows * layout.dim, step,
                                   rows.Part(sink, layout.rows));
    }
  }
  if (streaming) EndStreaming(kernels_);
  return good ? CodecStatus::kOk : CodecStatus::kCorrupt;
}

}  // namespace cairn::codecs
