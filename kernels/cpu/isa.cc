#include "cairn/kernels/isa.h"

#include <array>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace cairn::kernels {
namespace {

constexpr std::array<std::string_view, 6> kNames = {"portable", "neon",        "avx2",
                                                    "avx512",   "avx512-bf16", "avx512-amx"};

#if defined(__aarch64__)

// Each processor of this architecture that Linux runs on has it.
Isa Probe() { return Isa::kNeon; }

#else

// AMX state is large, so Linux gives it to a process only on request (arch_prctl(2)).
bool RequestTiles() {
  constexpr int kReqXcompPerm = 0x1023;
  constexpr int kXtileData = 18;
  return syscall(SYS_arch_prctl, kReqXcompPerm, kXtileData) == 0;
}

// These three by CPUID: Clang 14 does not know their names in __builtin_cpu_supports.
bool HasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1u << 29)) != 0;
}

bool HasTilesOfBf16() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmxBf16) != 0 && (d & kAmxTile) != 0;
}

Isa Probe() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !HasF16c()) {
    return Isa::kPortable;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512vnni")) {
    return Isa::kAvx2;
  }
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::kAvx512;
  if (!HasTilesOfBf16() || !RequestTiles()) return Isa::kAvx512Bf16;
  return Isa::kAmx;
}

#endif

}  // namespace

std::string_view Name(Isa isa) { return kNames[static_cast<size_t>(isa)]; }

std::optional<Isa> ParseIsa(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Isa>(i);
  }
  return std::nullopt;
}

Isa BestIsa() {
  static const Isa best = Probe();
  return best;
}

bool Supports(Isa isa) {
  return isa <= BestIsa() && (isa != Isa::kNeon || BestIsa() == Isa::kNeon);
}

}  // namespace cairn::kernels
