#include "kernels/cuda/gpu_launcher.cuh"
#include "kernels/cuda/unit_launches.h"
#include "kernels/cuda/unit_table.h"

namespace cairn::kernels::cuda {

const batch::UnitTable& UnitTableOfGpu() {
  static const batch::UnitTable table = UnitTableOf<GpuLauncher>("cuda");
  return table;
}

}  // namespace cairn::kernels::cuda
