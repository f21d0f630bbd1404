#include "kernels/cuda/head_table.h"

#include "kernels/cuda/gpu_launcher.h"
#include "kernels/cuda/head_launches.h"

namespace cairn::kernels::cuda {

const batch::HeadTable& HeadTableOfGpu() {
  static const batch::HeadTable table = HeadTableOf<GpuLauncher>("cuda");
  return table;
}

}  // namespace cairn::kernels::cuda
