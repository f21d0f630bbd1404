#include <array>

#include "kernels/cpu/codec/codec_makers.h"

namespace cairn::kernels {

const CodecKernels& CpuCodecKernels(Isa isa) {
  static const std::array<CodecKernels, 4> table = [] {
    std::array<CodecKernels, 4> t;
    t[0] = MakePortableCodecKernels();
#if defined(__aarch64__)
    t[1] = MakeNeonCodecKernels();
#else
    if (Supports(Isa::kAvx2)) t[2] = MakeAvx2CodecKernels();
    if (Supports(Isa::kAvx512)) t[3] = MakeAvx512CodecKernels();
#endif
    return t;
  }();
  return table[isa >= Isa::kAvx512 ? 3 : static_cast<size_t>(isa)];
}

}  // namespace cairn::kernels
