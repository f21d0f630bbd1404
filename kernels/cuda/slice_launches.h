#pragma once
// The operations on slices (launches.h) as a table. Launchers are those of forward_launches.h.

#include "cairn/kernels/batch/slice_table.h"
#include "kernels/cuda/launches.h"

namespace cairn::kernels::cuda {

// Launches until the first error, which it keeps: what comes behind would work on rubbish.
template <typename Launcher>
struct FirstError {
  void* stream = nullptr;
  int* error = nullptr;

  template <typename Kernel, typename... Arguments>
  void operator()(Kernel kernel, const Shape& shape, const Arguments&... arguments) const {
    if (*error == 0) *error = Launcher{stream}(kernel, shape, arguments...);
  }
};

template <typename Launcher>
batch::SliceTable SliceTableOf(const char* name) {
  batch::SliceTable t;
  t.name = name;
  t.encode_slices = [](void* stream, const SlicesArgs& a) {
    int error = 0;
    LaunchSlices(FirstError<Launcher>{stream, &error}, a, /*encodes=*/true);
    return error;
  };
  t.decode_slices = [](void* stream, const SlicesArgs& a) {
    int error = 0;
    LaunchSlices(FirstError<Launcher>{stream, &error}, a, /*encodes=*/false);
    return error;
  };
  t.hash_runs = [](void* stream, const HashRunsArgs& a) {
    int error = 0;
    LaunchHashRuns(FirstError<Launcher>{stream, &error}, a);
    return error;
  };
  t.gather_pages = [](void* stream, const MovePagesArgs& a) {
    int error = 0;
    LaunchPages(FirstError<Launcher>{stream, &error}, a, /*gathers=*/true);
    return error;
  };
  t.scatter_pages = [](void* stream, const MovePagesArgs& a) {
    int error = 0;
    LaunchPages(FirstError<Launcher>{stream, &error}, a, /*gathers=*/false);
    return error;
  };
  return t;
}

}  // namespace cairn::kernels::cuda
