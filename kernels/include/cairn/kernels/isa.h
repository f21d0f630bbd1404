#pragma once
// Which instruction sets the kernels may use on this machine.

#include <optional>
#include <string_view>

namespace cairn::kernels {

// From worst to best. Each needs everything that the one before it needs, but that NEON is of
// aarch64, and those behind it are of x86-64.
enum class Isa {
  kPortable,    // Whatever the compiler's base is (SSE2 on x86-64, NEON on aarch64).
  kNeon,        // NEON by intrinsics: conversions of halves, and sixteen lanes in four registers.
  kAvx2,        // AVX2, FMA, F16C.
  kAvx512,      // AVX-512 F, BW, DQ, VL and VNNI.
  kAvx512Bf16,  // and AVX-512 BF16 (Zen 4, Cooper Lake).
  kAmx,         // and AMX with bfloat16 tiles (Sapphire Rapids), when the kernel grants them.
};

// "portable", "neon", "avx2", "avx512", "avx512-bf16", "avx512-amx".
std::string_view Name(Isa isa);
std::optional<Isa> ParseIsa(std::string_view name);

// Thread-safe. Probes once. Tiles need a permission, which this function requests for the process.
bool Supports(Isa isa);
Isa BestIsa();

}  // namespace cairn::kernels
