#pragma once
// Each token's vector is rotated (random signs, then a Walsh-Hadamard transform), which makes its
// numbers nearly normal, then stored with Lloyd-Max levels and one gain. After TurboQuant (Zandieh
// et al., 2025, section 3.1), with the gain that minimises the squared error. Needs no calibration;
// tokens are independent.

#include "cairn/kernels/codec/codec_kernels.h"
#include "kernels/codecs/plane_codec.h"

namespace cairn::codecs {

// Immutable: any thread may use it at any time.
class TurboPlane final : public PlaneCodec {
 public:
  // `signs`: [dim], must outlive the plane. Null: those of the format.
  TurboPlane(const kernels::CodecKernels& kernels, int bits, const uint32_t* signs = nullptr)
      : kernels_(kernels), bits_(bits), signs_(signs) {}
  std::string Supports(int64_t tokens, int64_t dim) const override;
  size_t HeadBytes(int64_t tokens, int64_t dim, const HeadPlace& place) const override;
  bool EncodeHead(const kernels::HalfRows& x, const HeadPlace& place,
                  std::byte* out) const override;
  bool DecodeHead(const std::byte* in, const HeadPlace& place,
                  const kernels::MutableHalfRows& y) const override;

 private:
  const kernels::CodecKernels& kernels_;
  int bits_;
  const uint32_t* signs_;
};

// The sign bits (0 or 0x80000000) of `dim` dimensions for the layer's keys or values. Part of the
// format: other signs decode to noise.
void TurboSigns(int64_t layer, PlaneRole role, int64_t dim, uint32_t* signs);

}  // namespace cairn::codecs
