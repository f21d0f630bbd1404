#include "kernels/cuda/gpu_launcher.h"
#include "kernels/cuda/slice_launches.h"
#include "kernels/cuda/slice_table.h"

namespace cairn::kernels::cuda {

const batch::SliceTable& SliceTableOfGpu() {
  static const batch::SliceTable table = SliceTableOf<GpuLauncher>("cuda");
  return table;
}

}  // namespace cairn::kernels::cuda
