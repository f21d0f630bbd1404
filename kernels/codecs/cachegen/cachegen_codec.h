#pragma once
// Numbers as whole multiples of a step, as differences from their channel's mean in the block, and
// entropy-coded with rANS. After CacheGen (Liu et al., SIGCOMM 2024), whose ideas are deltas
// against anchors and an entropy coder that knows the channel; here the anchor is the channel's
// mean, one step serves a whole head (which spends bits where a channel needs them), and each
// channel of a block names one of 16 fixed distributions, so nothing has to be calibrated and every
// block is decoded alone.
//
// The size depends on the content. docs/inside/formats/codecs.md draws the bytes.

#include "cairn/kernels/codec/codec_kernels.h"
#include "kernels/codecs/codec.h"

namespace cairn::codecs {

// Immutable: any thread may use it at any time.
class CacheGenCodec final : public Codec {
 public:
  // Steps are in 64ths of a head's root mean square, 1 to 64; `sink` tokens at a sequence's start
  // stay in half precision.
  CacheGenCodec(const kernels::CodecKernels& kernels, int64_t k_step64, int64_t v_step64,
                int64_t sink)
      : kernels_(kernels), step64_{k_step64, v_step64}, sink_(sink) {}

  std::string_view name() const override { return "cachegen"; }
  bool FixedSize() const override { return false; }
  std::string Supports(const SliceShape& shape, const SlicePlace& place) const override;
  size_t MaxEncodedBytes(const SliceShape& shape, const SlicePlace& place) const override;
  size_t ScratchBytes(const SliceShape& shape) const override;
  EncodeResult Encode(const Plane& k, const Plane& v, int64_t tokens, const SlicePlace& place,
                      std::span<std::byte> out, std::span<std::byte> scratch) const override;
  CodecStatus Decode(std::span<const std::byte> in, const MutablePlane& k, const MutablePlane& v,
                     int64_t tokens, const SlicePlace& place, std::span<std::byte> scratch,
                     bool streaming) const override;

 private:
  // Constant after construction.
  const kernels::CodecKernels& kernels_;
  int64_t step64_[2];
  int64_t sink_;
};

}  // namespace cairn::codecs
