#pragma once
// 4 bits a number with a scale and a minimum per group, as KIVI has it (Liu et al., 2024): groups
// of tokens of one channel for keys, whose channels differ much; groups of channels of one token
// for values.

#include "cairn/kernels/codec/codec_kernels.h"
#include "kernels/codecs/plane_codec.h"

namespace cairn::codecs {

// Immutable: any thread may use it at any time.
class Int4TokenPlane final : public PlaneCodec {
 public:
  Int4TokenPlane(const kernels::CodecKernels& kernels, int64_t group)
      : kernels_(kernels), params_{group} {}
  std::string Supports(int64_t tokens, int64_t dim) const override;
  size_t HeadBytes(int64_t tokens, int64_t dim, const HeadPlace& place) const override;
  bool EncodeHead(const kernels::HalfRows& x, const HeadPlace& place,
                  std::byte* out) const override;
  bool DecodeHead(const std::byte* in, const HeadPlace& place,
                  const kernels::MutableHalfRows& y) const override;

 private:
  const kernels::CodecKernels& kernels_;
  kernels::Int4TokenParams params_;
};

// A head: for each group of tokens its channels' scales and minima, then its codes.
// Immutable: any thread may use it at any time.
class Int4ChannelPlane final : public PlaneCodec {
 public:
  // Groups hold `group` tokens, or the whole block where that is less.
  Int4ChannelPlane(const kernels::CodecKernels& kernels, int64_t group)
      : kernels_(kernels), group_(group) {}
  std::string Supports(int64_t tokens, int64_t dim) const override;
  size_t HeadBytes(int64_t tokens, int64_t dim, const HeadPlace& place) const override;
  bool EncodeHead(const kernels::HalfRows& x, const HeadPlace& place,
                  std::byte* out) const override;
  bool DecodeHead(const std::byte* in, const HeadPlace& place,
                  const kernels::MutableHalfRows& y) const override;

 private:
  // Tokens of the group that token `first` of the block begins or goes on with.
  int64_t GroupTokens(int64_t first, int64_t left) const;

  const kernels::CodecKernels& kernels_;
  int64_t group_;
};

}  // namespace cairn::codecs
