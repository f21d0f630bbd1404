#include "kernels/cuda/gpu_launcher.cuh"
#include "kernels/cuda/head_launches.h"
#include "kernels/cuda/head_table.h"
#include "kernels/cuda/slice_launches.h"
#include "kernels/cuda/slice_table.h"

namespace cairn::kernels::cuda {

const batch::SliceTable& SliceTableOfGpu() {
  static const batch::SliceTable table = SliceTableOf<GpuLauncher>("cuda");
  return table;
}

// Here, because the same kernels serve slices of cachegen, and a kernel is in one object.
const batch::HeadTable& HeadTableOfGpu() {
  static const batch::HeadTable table = HeadTableOf<GpuLauncher>("cuda");
  return table;
}

}  // namespace cairn::kernels::cuda
