#pragma once
// The operations of batch/head_table.h as launches and as a table. Launchers are those of
// forward_launches.h.

#include "cairn/kernels/batch/head_table.h"
#include "kernels/cuda/lattice.cuh"
#include "kernels/cuda/shape.h"

namespace cairn::kernels::cuda {

inline constexpr Shape kCountNonFiniteShape{{2, 1, 1}, 256, 0};
inline constexpr Shape kLatticeEncodeShape{{1, 1, 1}, kLatticeThreads, 80};
inline constexpr Shape kLatticeDecodeShape{{2, 1, 1}, 256, 0};

template <typename Launcher>
batch::HeadTable HeadTableOf(const char* name) {
  batch::HeadTable t;
  t.name = name;
  t.count_non_finite = [](void* stream, const CountNonFiniteArgs& a) -> int {
    return Launcher{stream}(cairn_count_non_finite, kCountNonFiniteShape, a);
  };
  t.lattice_encode = [](void* stream, const LatticeEncodeArgs& a) -> int {
    return Launcher{stream}(cairn_lattice_encode, kLatticeEncodeShape, a);
  };
  t.lattice_decode = [](void* stream, const LatticeDecodeArgs& a) -> int {
    return Launcher{stream}(cairn_lattice_decode, kLatticeDecodeShape, a);
  };
  return t;
}

}  // namespace cairn::kernels::cuda
