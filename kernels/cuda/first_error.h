#pragma once
// Operations that take several launches, as functions that return the first error of them.

#include <utility>

#include "kernels/cuda/shape.h"

namespace cairn::kernels::cuda {

// Launches until one fails. `error` outlives it.
template <typename Launcher>
struct UntilError {
  Launcher launcher;
  int* error;

  template <typename Kernel, typename... Arguments>
  void operator()(Kernel kernel, const Shape& shape, const Arguments&... arguments) const {
    if (*error == 0) *error = launcher(kernel, shape, arguments...);
  }
};

// Calls body(launch) with a launch that returns nothing. 0, or the first error.
template <typename Launcher, typename Body>
int FirstErrorOf(void* stream, Body body) {
  int error = 0;
  body(UntilError<Launcher>{Launcher{stream}, &error});
  return error;
}

}  // namespace cairn::kernels::cuda
