#pragma once
// Operations of a backend that runs inline, as plain calls. False: the operation found a fault.

#include <cstdint>

#include "cairn/kernels/codec/codec_kernels.h"

namespace cairn::codecs {

template <typename Params>
bool EncodeRows(kernels::CodecOp<kernels::EncodeArgs<Params>> encode, const kernels::HalfRows& x,
                const Params& params, std::byte* out) {
  kernels::InlineStream stream;
  uint32_t faults = 0;
  encode(stream, {x, params, out, &faults});
  return faults == 0;
}

template <typename Params>
bool DecodeRows(kernels::CodecOp<kernels::DecodeArgs<Params>> decode, const std::byte* in,
                const Params& params, const kernels::MutableHalfRows& y) {
  kernels::InlineStream stream;
  uint32_t faults = 0;
  decode(stream, {in, params, y, &faults});
  return faults == 0;
}

inline bool EncodeLattice(const kernels::CodecKernels& kernels, const kernels::HalfRows& x,
                          int64_t step64, uint16_t* step, uint16_t* out) {
  kernels::InlineStream stream;
  uint32_t faults = 0;
  kernels.lattice_encode(stream, {x, step64, step, out, &faults});
  return faults == 0;
}

inline bool DecodeLattice(const kernels::CodecKernels& kernels, const uint16_t* in, uint16_t step,
                          const kernels::MutableHalfRows& y) {
  kernels::InlineStream stream;
  uint32_t faults = 0;
  kernels.lattice_decode(stream, {in, step, y, &faults});
  return faults == 0;
}

inline void EndStreaming(const kernels::CodecKernels& kernels) {
  kernels::InlineStream stream;
  kernels.end_streaming(stream);
}

}  // namespace cairn::codecs
