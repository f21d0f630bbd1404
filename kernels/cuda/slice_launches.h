#pragma once
// The operations on slices (launches.h) as a table. Launchers are those of forward_launches.h.

#include "cairn/kernels/batch/slice_table.h"
#include "kernels/cuda/first_error.h"
#include "kernels/cuda/launches.h"

namespace cairn::kernels::cuda {

template <typename Launcher>
batch::SliceTable SliceTableOf(const char* name) {
  batch::SliceTable t;
  t.name = name;
  t.encode_slices = [](void* stream, const SlicesArgs& a) {
    return FirstErrorOf<Launcher>(stream, [&](auto launch) { LaunchSlices(launch, a, true); });
  };
  t.decode_slices = [](void* stream, const SlicesArgs& a) {
    return FirstErrorOf<Launcher>(stream, [&](auto launch) { LaunchSlices(launch, a, false); });
  };
  t.hash_runs = [](void* stream, const HashRunsArgs& a) {
    return FirstErrorOf<Launcher>(stream, [&](auto launch) { LaunchHashRuns(launch, a); });
  };
  t.gather_pages = [](void* stream, const MovePagesArgs& a) {
    return FirstErrorOf<Launcher>(stream, [&](auto launch) { LaunchPages(launch, a, true); });
  };
  t.scatter_pages = [](void* stream, const MovePagesArgs& a) {
    return FirstErrorOf<Launcher>(stream, [&](auto launch) { LaunchPages(launch, a, false); });
  };
  return t;
}

}  // namespace cairn::kernels::cuda
