#pragma once
// Entries of CodecKernels for kernels that are plain functions and run where they are called:
//
//   bool Int8Encode(const HalfRows& x, const Int8Params& p, std::byte* out);
//   bool Int8Decode(const std::byte* in, const Int8Params& p, const MutableHalfRows& y);
//
// False is a fault.

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

}  // namespace cairn::kernels
