#pragma once
// fp8 e4m3 with one scale per token. 25 times the error of int8 at the same size: for engines whose
// kernels read fp8.

#include "cairn/kernels/codec/codec_kernels.h"
#include "kernels/codecs/plane_codec.h"

namespace cairn::codecs {

// Immutable: any thread may use it at any time.
class Fp8Plane final : public PlaneCodec {
 public:
  explicit Fp8Plane(const kernels::CodecKernels& kernels) : kernels_(kernels) {}
  std::string Supports(int64_t tokens, int64_t dim) const override;
  size_t HeadBytes(int64_t tokens, int64_t dim, const HeadPlace& place) const override;
  bool EncodeHead(const kernels::HalfRows& x, const HeadPlace& place,
                  std::byte* out) const override;
  bool DecodeHead(const std::byte* in, const HeadPlace& place,
                  const kernels::MutableHalfRows& y) const override;

 private:
  const kernels::CodecKernels& kernels_;
};

}  // namespace cairn::codecs
