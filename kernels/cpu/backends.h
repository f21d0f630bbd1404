#pragma once
// One maker per translation unit of this folder. Call only where Supports(isa).

#include "cairn/kernels/backend.h"

namespace cairn::kernels {

Backend MakePortableBackend();
Backend MakeAvx2Backend();
Backend MakeAvx512Backend();
// Takes the AVX-512 table and puts its bfloat16 products in.
Backend AddAvx512Bf16(Backend backend);
Backend AddAmx(Backend backend);

}  // namespace cairn::kernels
