#pragma once
// A codec: how the numbers of one slice (one layer of one block) are stored.
//
// A slice has two planes, keys and values, each [KV head][token][dimension] in half precision. Its
// encoded form depends on nothing but the slice, its absolute layer, its first position and the
// codec's parameters: no other block, no other layer, no machine. A codec may be lossy. It is part
// of a namespace's recipe, so only clients that asked for lossy blocks get them.
//
// Codecs are immutable and thread-safe. Encode and Decode allocate nothing: the caller gives the
// working memory (ScratchBytes).

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "cairn/kernels/codec/rows.h"

namespace cairn::codecs {

inline constexpr int64_t kMaxHeads = 4096;
inline constexpr int64_t kMaxTokens = 65535;

// Half precision numbers [heads][tokens][dim]; strides count numbers.
struct Plane {
  const uint16_t* data = nullptr;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
};

struct MutablePlane {
  uint16_t* data = nullptr;
  int64_t heads = 0;
  int64_t dim = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
};

// Keys and values of one layer. A layer without one of them has heads = 0 there.
struct SliceShape {
  int64_t tokens = 0;
  int64_t k_heads = 0;
  int64_t k_dim = 0;
  int64_t v_heads = 0;
  int64_t v_dim = 0;

  // Bytes of the slice in half precision.
  int64_t HalfBytes() const { return 2 * tokens * (k_heads * k_dim + v_heads * v_dim); }
};

// Where a slice comes from. Encoder and decoder must give the same place, or the decoded numbers
// are wrong.
struct SlicePlace {
  int64_t layer = 0;  // Absolute, in the model.
  // Position of the block's first token in the sequence. Negative: unknown.
  int64_t first_position = 0;
};

enum class CodecStatus {
  kOk,
  kNonFinite,    // Encode: NaN or infinity in the input. EncodeResult counts them.
  kUnsupported,  // The codec cannot store this shape: Supports says why.
  kTooSmall,     // Encode: the output or the scratch is smaller than MaxEncodedBytes, ScratchBytes.
  kCorrupt,      // Decode: no encoder of this codec writes these bytes for this shape.
};
std::string_view Name(CodecStatus status);

struct EncodeResult {
  CodecStatus status = CodecStatus::kOk;
  size_t bytes = 0;        // Written, when kOk.
  int64_t non_finite = 0;  // When kNonFinite.
};

class Codec {
 public:
  virtual ~Codec() = default;

  // As the recipe grammar has it: "int8".
  virtual std::string_view name() const = 0;

  // Empty: slices of this shape and place can be stored. Otherwise the reason, which names the
  // field, its value and what was expected.
  virtual std::string Supports(const SliceShape& shape, const SlicePlace& place) const = 0;

  // An upper bound of the size of Encode's output. It is exact when FixedSize(). REQUIRES:
  // Supports(shape, place) is empty.
  virtual size_t MaxEncodedBytes(const SliceShape& shape, const SlicePlace& place) const = 0;
  virtual bool FixedSize() const { return true; }
  // Scratch memory of both Encode and Decode.
  virtual size_t ScratchBytes(const SliceShape&) const { return 0; }

  // `out` and `scratch` must not overlap anything. After a refused slice `out` is unspecified.
  virtual EncodeResult Encode(const Plane& k, const Plane& v, int64_t tokens,
                              const SlicePlace& place, std::span<std::byte> out,
                              std::span<std::byte> scratch) const = 0;

  // Takes any bytes. The result is kCorrupt, or half precision numbers that are all finite (raw:
  // any numbers). Reads and writes only within the arguments. After kCorrupt the planes are
  // unspecified. `streaming`: see kernels::MutableHalfRows.
  virtual CodecStatus Decode(std::span<const std::byte> in, const MutablePlane& k,
                             const MutablePlane& v, int64_t tokens, const SlicePlace& place,
                             std::span<std::byte> scratch, bool streaming = false) const = 0;
};

inline SliceShape ShapeOf(const Plane& k, const Plane& v, int64_t tokens) {
  return {tokens, k.heads, k.dim, v.heads, v.dim};
}
inline SliceShape ShapeOf(const MutablePlane& k, const MutablePlane& v, int64_t tokens) {
  return {tokens, k.heads, k.dim, v.heads, v.dim};
}

}  // namespace cairn::codecs
