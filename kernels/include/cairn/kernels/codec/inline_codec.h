#pragma once
// Entries of CodecKernels for kernels that are plain functions and run where they are called:
//
//   bool Int8Encode(const HalfRows& x, const Int8Params& p, std::byte* out);
//   bool Int8Decode(const std::byte* in, const Int8Params& p, const MutableHalfRows& y);
//
// False is a fault. CAIRN_INLINE_CODECS makes the table of such a backend.

#include "cairn/kernels/codec/codec_kernels.h"

namespace cairn::kernels {

template <auto kKernel>
struct InlineCodec;

template <typename Params, bool (*kKernel)(const HalfRows&, const Params&, std::byte*)>
struct InlineCodec<kKernel> {
  static void Run(Stream&, const EncodeArgs<Params>& a) {
    if (!kKernel(a.x, a.params, a.out)) *a.faults |= kNonFiniteFault;
  }
};

template <typename Params, bool (*kKernel)(const std::byte*, const Params&, const MutableHalfRows&)>
struct InlineCodec<kKernel> {
  static void Run(Stream&, const DecodeArgs<Params>& a) {
    if (!kKernel(a.in, a.params, a.y)) *a.faults |= kScaleFault;
  }
};

template <int64_t (*kKernel)(const HalfRows&)>
struct InlineCodec<kKernel> {
  static void Run(Stream&, const CountNonFiniteArgs& a) { *a.count += kKernel(a.x); }
};

template <bool (*kKernel)(const HalfRows&, int64_t, uint16_t*, uint16_t*)>
struct InlineCodec<kKernel> {
  static void Run(Stream&, const LatticeEncodeArgs& a) {
    if (!kKernel(a.x, a.step64, a.step, a.out)) *a.faults |= kNonFiniteFault;
  }
};

template <bool (*kKernel)(const uint16_t*, uint16_t, const MutableHalfRows&)>
struct InlineCodec<kKernel> {
  static void Run(Stream&, const LatticeDecodeArgs& a) {
    if (!kKernel(a.in, a.step, a.y)) *a.faults |= kScaleFault;
  }
};

template <void (*kKernel)()>
struct InlineCodec<kKernel> {
  static void Run(Stream&) { kKernel(); }
};

// A CodecKernels of the functions that have these names where it stands.
#define CAIRN_INLINE_CODECS(backend)                                                              \
  CodecKernels {                                                                                  \
    .name = backend, .count_non_finite = InlineCodec<CountNonFinite>::Run,                        \
    .end_streaming = InlineCodec<EndStreaming>::Run, .int8_encode = InlineCodec<Int8Encode>::Run, \
    .int8_decode = InlineCodec<Int8Decode>::Run,                                                  \
    .int4_token_encode = InlineCodec<Int4TokenEncode>::Run,                                       \
    .int4_token_decode = InlineCodec<Int4TokenDecode>::Run,                                       \
    .int4_channel_encode = InlineCodec<Int4ChannelEncode>::Run,                                   \
    .int4_channel_decode = InlineCodec<Int4ChannelDecode>::Run,                                   \
    .turbo_encode = InlineCodec<TurboEncode>::Run, .turbo_decode = InlineCodec<TurboDecode>::Run, \
    .fp8_encode = InlineCodec<Fp8Encode>::Run, .fp8_decode = InlineCodec<Fp8Decode>::Run,         \
    .lattice_encode = InlineCodec<LatticeEncode>::Run,                                            \
    .lattice_decode = InlineCodec<LatticeDecode>::Run,                                            \
  }

}  // namespace cairn::kernels
