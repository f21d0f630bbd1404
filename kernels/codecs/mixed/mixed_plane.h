#pragma once
// int4 by token, with the channels of largest magnitude kept in half precision: a few channels of
// keys are ten times larger than the others, and would set the scale of every group.
//
// A head: outlier channels [outliers] u16 ascending, their numbers [tokens][outliers] half, then
// the rows of int4 by token, where outliers count as 0.

#include "cairn/kernels/codec/codec_kernels.h"
#include "kernels/codecs/plane_codec.h"

namespace cairn::codecs {

// Immutable: any thread may use it at any time.
class MixedPlane final : public PlaneCodec {
 public:
  MixedPlane(const kernels::CodecKernels& kernels, int64_t group, int64_t outliers)
      : kernels_(kernels), params_{group}, outliers_(outliers) {}
  std::string Supports(int64_t tokens, int64_t dim) const override;
  size_t HeadBytes(int64_t tokens, int64_t dim, const HeadPlace& place) const override;
  bool EncodeHead(const kernels::HalfRows& x, const HeadPlace& place,
                  std::byte* out) const override;
  bool DecodeHead(const std::byte* in, const HeadPlace& place,
                  const kernels::MutableHalfRows& y) const override;

 private:
  static constexpr int64_t kMostOutliers = 64;

  const kernels::CodecKernels& kernels_;
  kernels::Int4TokenParams params_;
  int64_t outliers_;
};

}  // namespace cairn::codecs
