#pragma once
// The shape of a launch.

#include <cstddef>

#include "kernels/cuda/device.h"

namespace cairn::kernels::cuda {

struct Shape {
  dim3 blocks;
  unsigned threads = 0;
  size_t shared_bytes = 0;
};

}  // namespace cairn::kernels::cuda
