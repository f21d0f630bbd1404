#pragma once
// Launches kernels with CUDA's runtime. For the sources that nvcc compiles into libcairn_cuda.so.

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <type_traits>

#include "kernels/cuda/device_sm90.h"
#include "kernels/cuda/shape.h"

namespace cairn::kernels::cuda {

// More shared memory than this must be asked for, kernel by kernel.
constexpr size_t kUnaskedSharedBytes = 48 << 10;

using EncodeMap = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                               const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                               const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                               CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's function, which no program links. Null: the driver is too old.
inline EncodeMap FindEncodeMap() {
  static const EncodeMap function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                               12000, cudaEnableDefault, &result);
    const bool there = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
    return there ? reinterpret_cast<EncodeMap>(found) : nullptr;
  }();
  return function;
}

// As forward_launches.h describes a launcher. An operation returns a cudaError_t.
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

  int MapRows(const void* base, int64_t rows, int64_t cols, int64_t box_rows,
              MatrixMap* map) const {
    static_assert(sizeof(MatrixMap) == sizeof(CUtensorMap));
    const EncodeMap encode = FindEncodeMap();
    if (encode == nullptr) return cudaErrorCallRequiresNewerDriver;
    const cuuint64_t sizes[] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
    const cuuint64_t strides[] = {static_cast<cuuint64_t>(cols) * 2};
    const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows)};
    const cuuint32_t steps[] = {1, 1};
    const CUresult result =
        encode(reinterpret_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
               const_cast<void*>(base), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
  }
};

}  // namespace cairn::kernels::cuda
