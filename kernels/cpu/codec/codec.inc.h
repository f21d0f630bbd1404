// All codec kernels for one instruction set: see lanes.inc.h.

// The order matters: each of these uses what stands before it.
// clang-format off
#include "kernels/cpu/codec/codec_makers.h"
#include "cairn/kernels/codec/inline_codec.h"
#include "cairn/kernels/codec/turbo_levels.h"
#include "kernels/cpu/codec/lanes.inc.h"
#include "kernels/cpu/codec/int8.inc.h"
#include "kernels/cpu/codec/int4.inc.h"
#include "kernels/cpu/codec/turbo.inc.h"
#include "kernels/cpu/codec/fp8.inc.h"
#include "kernels/cpu/codec/lattice.inc.h"
// clang-format on

namespace cairn::kernels::CAIRN_KERNEL_NS {

static int64_t CountNonFinite(const HalfRows& x) {
  int64_t count = 0;
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t c = 0; c < x.dim; ++c) count += IsFinite(x.row(r)[c]) ? 0 : 1;
  }
  return count;
}

static CodecKernels Table(const char* name) {
  CodecKernels k;
  k.name = name;
  k.count_non_finite = InlineCodec<CountNonFinite>::Run;
  k.end_streaming = InlineCodec<EndStreaming>::Run;
  k.int8_encode = InlineCodec<Int8Encode>::Run;
  k.int8_decode = InlineCodec<Int8Decode>::Run;
  k.int4_token_encode = InlineCodec<Int4TokenEncode>::Run;
  k.int4_token_decode = InlineCodec<Int4TokenDecode>::Run;
  k.int4_channel_encode = InlineCodec<Int4ChannelEncode>::Run;
  k.int4_channel_decode = InlineCodec<Int4ChannelDecode>::Run;
  k.turbo_encode = InlineCodec<TurboEncode>::Run;
  k.turbo_decode = InlineCodec<TurboDecode>::Run;
  k.fp8_encode = InlineCodec<Fp8Encode>::Run;
  k.fp8_decode = InlineCodec<Fp8Decode>::Run;
  k.lattice_encode = InlineCodec<LatticeEncode>::Run;
  k.lattice_decode = InlineCodec<LatticeDecode>::Run;
  return k;
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
