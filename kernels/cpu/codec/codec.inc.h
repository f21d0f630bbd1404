// All codec kernels for one instruction set: see lanes.h.

// The order matters: each of these uses what stands before it.
// clang-format off
#include "kernels/cpu/codec/codec_makers.h"
#include "cairn/kernels/codec/turbo_levels.h"
#include "kernels/cpu/codec/lanes.h"
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
  k.count_non_finite = CountNonFinite;
  k.end_streaming = EndStreaming;
  k.int8_encode = Int8Encode;
  k.int8_decode = Int8Decode;
  k.int4_token_encode = Int4TokenEncode;
  k.int4_token_decode = Int4TokenDecode;
  k.int4_channel_encode = Int4ChannelEncode;
  k.int4_channel_decode = Int4ChannelDecode;
  k.turbo_encode = TurboEncode;
  k.turbo_decode = TurboDecode;
  k.fp8_encode = Fp8Encode;
  k.fp8_decode = Fp8Decode;
  k.lattice_encode = LatticeEncode;
  k.lattice_decode = LatticeDecode;
  return k;
}

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
