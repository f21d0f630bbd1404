#pragma once
// A codec made of one PlaneCodec for keys and one for values, which stores the sink separately.
//
// Bytes: keys, then values; in each, head by head:
//   sink rows in half precision (only in the block whose first position is 0), then the encoded
//   head of the other tokens.
//
// The sink is the first token of a sequence. Attention gives it much weight, and its keys and
// values are unlike all others. So it is stored in half precision, because it would spoil the
// groups that it was in (measured: docs/inside/formats/codecs.md).

#include <memory>
#include <string>

#include "cairn/kernels/codec/codec_kernels.h"
#include "kernels/codecs/plane_codec.h"

namespace cairn::codecs {

// Immutable: any thread may use it at any time.
class PlanewiseCodec final : public Codec {
 public:
  // `sink`: tokens at the sequence's start that are kept in half precision.
  PlanewiseCodec(std::string name, const kernels::CodecKernels& kernels,
                 std::unique_ptr<PlaneCodec> keys, std::unique_ptr<PlaneCodec> values,
                 int64_t sink);

  std::string_view name() const override { return name_; }
  std::string Supports(const SliceShape& shape, const SlicePlace& place) const override;
  size_t MaxEncodedBytes(const SliceShape& shape, const SlicePlace& place) const override;
  EncodeResult Encode(const Plane& k, const Plane& v, int64_t tokens, const SlicePlace& place,
                      std::span<std::byte> out, std::span<std::byte> scratch) const override;
  CodecStatus Decode(std::span<const std::byte> in, const MutablePlane& k, const MutablePlane& v,
                     int64_t tokens, const SlicePlace& place, std::span<std::byte> scratch,
                     bool streaming) const override;

 private:
  int64_t SinkRows(int64_t tokens, const SlicePlace& place) const;
  size_t HeadBytes(const PlaneCodec& codec, PlaneRole role, int64_t tokens, int64_t dim,
                   const SlicePlace& place) const;

  // Constant after construction.
  std::string name_;
  const kernels::CodecKernels& kernels_;
  std::unique_ptr<PlaneCodec> keys_;
  std::unique_ptr<PlaneCodec> values_;
  int64_t sink_;
};

}  // namespace cairn::codecs
