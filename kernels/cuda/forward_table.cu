#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/forward_launches.h"
#include "kernels/cuda/forward_table.h"
#include "kernels/cuda/gpu_launcher.cuh"

namespace cairn::kernels::cuda {
namespace {

using EncodeMap = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                               const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                               const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                               CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's function, which no program links. Null: the driver is too old.
EncodeMap FindEncodeMap() {
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

struct MappingLauncher : GpuLauncher {
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

}  // namespace

const batch::ForwardKernels& ForwardTableOfGpu() {
  static const batch::ForwardKernels table = ForwardTable<MappingLauncher, false>("cuda");
  return table;
}

const batch::ForwardKernels& ForwardTableOfGpu90a() {
  static const batch::ForwardKernels table = ForwardTable<MappingLauncher, true>("cuda-9.0a");
  return table;
}

}  // namespace cairn::kernels::cuda
