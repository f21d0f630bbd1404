#include "kernels/cuda/forward_launches.h"
#include "kernels/cuda/gpu_launcher.h"
#include "kernels/cuda/gpu_tables.h"

namespace cairn::kernels::cuda {

const batch::ForwardKernels& ForwardTableOfGpu() {
  static const batch::ForwardKernels table = ForwardTable<GpuLauncher, false>("cuda");
  return table;
}

const batch::ForwardKernels& ForwardTableOfGpu90a() {
  static const batch::ForwardKernels table = ForwardTable<GpuLauncher, true>("cuda-9.0a");
  return table;
}

}  // namespace cairn::kernels::cuda
