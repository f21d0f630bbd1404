#pragma once
// Runs CUDA kernels that g++ has compiled as plain C++ (kernels/cuda/on_cpu.h), to their end:
//
//   Launch({.blocks = {heads}, .threads = 128, .shared_bytes = 4096, .seed = 7}, kernel, a, b);
//
// A thread of a block is a fibre. A block runs on the calling thread, blocks run one after another.
// The seed chooses the order of blocks, warps and lanes.
//
// README.md says what each build of such a test finds.

#include <functional>

#include "kernels/cuda/on_cpu.h"

namespace cairn::kernels::testing {

struct LaunchShape {
  dim3 blocks = {};
  unsigned threads = 1;     // Threads of a block, 1 to 1024.
  size_t shared_bytes = 0;  // Limit for arrays in shared memory, each rounded up to 16 bytes.
  // 0: all in order. Otherwise another order for each block, and odd seeds begin with the last
  // block.
  uint64_t seed = 0;
};

// Ends the process with a message if threads wait for each other forever, a thread ends with copies
// that nobody waited for, or shared memory beyond the launch is taken. Any thread may call
// it; launches of several threads run one after another.
void RunGrid(const LaunchShape& shape, const std::function<void()>& kernel);

template <typename... Parameters, typename... Arguments>
void Launch(const LaunchShape& shape, void (*kernel)(Parameters...), Arguments... arguments) {
  // A launch copies its arguments.
  RunGrid(shape, [=] { kernel(arguments...); });
}

}  // namespace cairn::kernels::testing
