#pragma once
// A codec made of one PlaneCodec for keys and one for values, with the sink stored apart.
//
// Bytes: keys, then values; in each, head by head:
//   sink rows in half precision (only in the block whose first position is 0), then the encoded
//   head of the other tokens.
//
// The sink is the first token of a sequence: attention puts much weight on it, its keys and values
// are unlike all others, so it deserves full precision and would spoil the groups it were in
// (measured: docs/formats/codecs.md).

#include <memory>
#include <string>

#include "cairn/kernels/codec/codec_kernels.h"
#include "kernels/codecs/plane_codec.h"

namespace cairn::codecs {

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
