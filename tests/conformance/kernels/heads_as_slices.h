#pragma once
// The codecs' kernels of single heads over operations on slices: a head is a slice of one head.

#include <algorithm>
#include <cstdint>

#include "cairn/kernels/codec/codec_kernels.h"
#include "cairn/kernels/codec/slice_kernels.h"

namespace cairn::kernels::testing {

template <typename Params>
struct CodingOf;
template <>
struct CodingOf<Int8Params> {
  static constexpr HeadCoding kCoding = HeadCoding::kInt8;
  static int64_t Parameter(const Int8Params& p, int64_t) { return p.group; }
};
template <>
struct CodingOf<Int4TokenParams> {
  static constexpr HeadCoding kCoding = HeadCoding::kInt4Token;
  static int64_t Parameter(const Int4TokenParams& p, int64_t) { return p.group; }
};
template <>
struct CodingOf<Int4ChannelParams> {
  static constexpr HeadCoding kCoding = HeadCoding::kInt4Channel;
  // All rows of the call are one group.
  static int64_t Parameter(const Int4ChannelParams&, int64_t rows) {
    return std::max<int64_t>(rows, 1);
  }
};
template <>
struct CodingOf<TurboParams> {
  static constexpr HeadCoding kCoding = HeadCoding::kTurbo;
  static int64_t Parameter(const TurboParams& p, int64_t) { return p.bits; }
};
template <>
struct CodingOf<Fp8Params> {
  static constexpr HeadCoding kCoding = HeadCoding::kFp8;
  static int64_t Parameter(const Fp8Params&, int64_t) { return 0; }
};

template <typename Params>
const uint32_t* SignsOf(const Params&) {
  return nullptr;
}
inline const uint32_t* SignsOf(const TurboParams& params) { return params.signs; }

// `run(args)` encodes or decodes slices.
template <typename Run, typename Params>
void RunHead(Run run, const HalfRows& rows, const Params& params, std::byte* bytes,
             uint32_t* faults) {
  SliceForm form;
  form.k = {CodingOf<Params>::kCoding,
            static_cast<int32_t>(CodingOf<Params>::Parameter(params, rows.rows)),
            1,
            static_cast<int32_t>(rows.dim),
            0,
            rows.stride};
  form.signs = SignsOf(params);
  SliceTask slice;
  slice.encoded = bytes;
  slice.k = const_cast<uint16_t*>(rows.data);
  slice.faults = faults;
  slice.tokens = static_cast<int32_t>(rows.rows);
  slice.bytes = static_cast<uint64_t>(SliceBytes(form, slice));
  run(SlicesArgs{form, &slice, 1});
}

// `Slices` has static functions Encode and Decode of a Stream& and SlicesArgs.
template <typename Slices, typename Params>
void EncodeHead(Stream& stream, const EncodeArgs<Params>& a) {
  RunHead([&](const SlicesArgs& args) { Slices::Encode(stream, args); }, a.x, a.params, a.out,
          a.faults);
}
template <typename Slices, typename Params>
void DecodeHead(Stream& stream, const DecodeArgs<Params>& a) {
  RunHead([&](const SlicesArgs& args) { Slices::Decode(stream, args); },
          {a.y.data, a.y.rows, a.y.dim, a.y.stride}, a.params, const_cast<std::byte*>(a.in),
          a.faults);
}

// Sets the entries of all codecs whose heads are slices.
template <typename Slices>
void SetHeadsAsSlices(CodecKernels* k) {
  k->int8_encode = EncodeHead<Slices, Int8Params>;
  k->int8_decode = DecodeHead<Slices, Int8Params>;
  k->int4_token_encode = EncodeHead<Slices, Int4TokenParams>;
  k->int4_token_decode = DecodeHead<Slices, Int4TokenParams>;
  k->int4_channel_encode = EncodeHead<Slices, Int4ChannelParams>;
  k->int4_channel_decode = DecodeHead<Slices, Int4ChannelParams>;
  k->turbo_encode = EncodeHead<Slices, TurboParams>;
  k->turbo_decode = DecodeHead<Slices, TurboParams>;
  k->fp8_encode = EncodeHead<Slices, Fp8Params>;
  k->fp8_decode = DecodeHead<Slices, Fp8Params>;
}

}  // namespace cairn::kernels::testing
