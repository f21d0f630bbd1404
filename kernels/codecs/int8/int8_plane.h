#pragma once
// 8 bits a number and a half precision scale per token and group of dimensions: nearly free (KL
// 4e-5 nat at 8.5 bits).

#include "cairn/kernels/codec/codec_kernels.h"
#include "kernels/codecs/plane_codec.h"

namespace cairn::codecs {

// Immutable: any thread may use it at any time.
class Int8Plane final : public PlaneCodec {
 public:
  Int8Plane(const kernels::CodecKernels& kernels, int64_t group)
      : kernels_(kernels), params_{group} {}
  std::string Supports(int64_t tokens, int64_t dim) const override;
  size_t HeadBytes(int64_t tokens, int64_t dim, const HeadPlace& place) const override;
  bool EncodeHead(const kernels::HalfRows& x, const HeadPlace& place,
                  std::byte* out) const override;
  bool DecodeHead(const std::byte* in, const HeadPlace& place,
                  const kernels::MutableHalfRows& y) const override;

 private:
  const kernels::CodecKernels& kernels_;
  kernels::Int8Params params_;
};

}  // namespace cairn::codecs
