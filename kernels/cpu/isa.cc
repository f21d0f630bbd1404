#include "kernels/include/cairn/kernels/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "kernels/cpu/backends.h"

namespace cairn::kernels {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"portable", "avx2", "avx512", "avx512-bf16",
                                                    "avx512-amx"};

// AMX state is large, so Linux gives it to a process only on request (arch_prctl(2)).
bool RequestTiles() {
  constexpr int kReqXcompPerm = 0x1023;
  constexpr int kXtileData = 18;
  return syscall(SYS_arch_prctl, kReqXcompPerm, kXtileData) == 0;
}

Isa Probe() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("f16c")) {
    return Isa::kPortable;
  }
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512vnni")) {
    return Isa::kAvx2;
  }
  if (!__builtin_cpu_supports("avx512bf16")) return Isa::kAvx512;
  if (!__builtin_cpu_supports("amx-tile") || !__builtin_cpu_supports("amx-bf16") ||
      !RequestTiles()) {
    return Isa::kAvx512Bf16;
  }
  return Isa::kAmx;
}

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

bool Supports(Isa isa) { return isa <= BestIsa(); }

std::vector<Isa> SupportedIsas() {
  std::vector<Isa> all;
  for (int i = 0; i <= static_cast<int>(BestIsa()); ++i) all.push_back(static_cast<Isa>(i));
  return all;
}

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
