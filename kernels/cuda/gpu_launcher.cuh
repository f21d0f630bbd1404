#pragma once
// Launches kernels with CUDA's runtime. Compiled by nvcc. See forward_launches.h.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <type_traits>

#include "kernels/cuda/shape.h"

namespace cairn::kernels::cuda {

// More shared memory than this must be asked for, kernel by kernel.
inline constexpr size_t kUnaskedSharedBytes = 48 << 10;

struct GpuLauncher {
  void* stream = nullptr;

  template <typename... Parameters, typename... Arguments>
  int operator()(void (*kernel)(Parameters...), const Shape& shape,
                 const Arguments&... arguments) const {
    static_assert((std::is_same_v<std::remove_cv_t<Parameters>, Arguments> && ...),
                  "a launch copies the arguments' bytes");
    const auto* const function = reinterpret_cast<const void*>(kernel);
    if (shape.shared_bytes > kUnaskedSharedBytes) {
      const cudaError_t error =
          cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes));
      if (error != cudaSuccess) return error;
    }
    void* parameters[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
    return cudaLaunchKernel(function, shape.blocks, dim3{shape.threads, 1, 1}, parameters,
                            shape.shared_bytes, static_cast<cudaStream_t>(stream));
  }
};

}  // namespace cairn::kernels::cuda
