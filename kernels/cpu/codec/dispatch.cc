#include <array>

#include "kernels/cpu/codec/codec_makers.h"

namespace cairn::kernels {

const CodecKernels& CpuCodecKernels(Isa isa) {
  static const std::array<CodecKernels, 3> table = [] {
    std::array<CodecKernels, 3> t;
    t[0] = MakePortableCodecKernels();
    if (Supports(Isa::kAvx2)) t[1] = MakeAvx2CodecKernels();
    if (Supports(Isa::kAvx512)) t[2] = MakeAvx512CodecKernels();
    return t;
  }();
  return table[isa >= Isa::kAvx512 ? 2 : static_cast<size_t>(isa)];
}

}  // namespace cairn::kernels
