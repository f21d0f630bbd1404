#include <array>

#include "kernels/cpu/backends.h"

namespace cairn::kernels {

const Backend& CpuBackend(Isa isa) {
  static const std::array<Backend, 5> table = [] {
    std::array<Backend, 5> t;
    t[0] = MakePortableBackend();
    if (Supports(Isa::kAvx2)) t[1] = MakeAvx2Backend();
    if (Supports(Isa::kAvx512)) t[2] = MakeAvx512Backend();
    if (Supports(Isa::kAvx512Bf16)) t[3] = AddAvx512Bf16(t[2]);
    if (Supports(Isa::kAmx)) t[4] = AddAmx(t[3]);
    return t;
  }();
  return table[static_cast<size_t>(isa)];
}

}  // namespace cairn::kernels
