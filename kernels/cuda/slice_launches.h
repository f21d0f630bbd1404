#pragma once
// The table of operations on slices (cairn/kernels/batch/slice_table.h) for a launcher, as
// forward_launches.h describes it.

#include "cairn/kernels/batch/slice_table.h"
#include "kernels/cuda/first_error.h"
#include "kernels/cuda/lattice.cuh"
#include "kernels/cuda/launches.h"

namespace cairn::kernels::cuda {

inline constexpr Shape kCountNonFiniteShape{{2, 1, 1}, 256, 0};
inline constexpr Shape kLatticeEncodeShape{{1, 1, 1}, kLatticeThreads, 80};
inline constexpr Shape kLatticeDecodeShape{{2, 1, 1}, 256, 0};

template <typename Launcher>
batch::SliceTable SliceTableOf(const char* name) {
  batch::SliceTable t;
  t.name = name;
  t.encode_slices = [](void* stream, const SlicesArgs& a) {
    return FirstError<Launcher>(stream, [&](auto launch) { LaunchSlices(launch, a, true); });
  };
  t.decode_slices = [](void* stream, const SlicesArgs& a) {
    return FirstError<Launcher>(stream, [&](auto launch) { LaunchSlices(launch, a, false); });
  };
  t.hash_runs = [](void* stream, const HashRunsArgs& a) {
    return FirstError<Launcher>(stream, [&](auto launch) { LaunchHashRuns(launch, a); });
  };
  t.gather_pages = [](void* stream, const MovePagesArgs& a) {
    return FirstError<Launcher>(stream, [&](auto launch) { LaunchPages(launch, a, true); });
  };
  t.scatter_pages = [](void* stream, const MovePagesArgs& a) {
    return FirstError<Launcher>(stream, [&](auto launch) { LaunchPages(launch, a, false); });
  };
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
