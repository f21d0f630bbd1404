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

static CodecKernels Table(const char* name) { return CAIRN_INLINE_CODECS(name); }

}  // namespace cairn::kernels::CAIRN_KERNEL_NS
