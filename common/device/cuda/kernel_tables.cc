#include "common/device/cuda/kernel_tables.h"

// Set where nvcc has compiled kernels/cuda into objects for this library.
#ifdef CAIRN_CUDA_OBJECTS
#include "kernels/cuda/forward_table.h"
#include "kernels/cuda/slice_table.h"
#endif

namespace cairn::device::cuda {

std::span<const KernelTable> KernelTables(int family_major) {
#ifdef CAIRN_CUDA_OBJECTS
  namespace batch = kernels::batch;
  // Those of every device, and then those of compute capability 9.0.
  static const KernelTable kTables[] = {
      {batch::kForwardTableName, batch::kForwardTableVersion, &kernels::cuda::ForwardTableOfGpu()},
      {batch::kSliceTableName, batch::kSliceTableVersion, &kernels::cuda::SliceTableOfGpu()},
      {batch::kForwardTable90aName, batch::kForwardTableVersion,
       &kernels::cuda::ForwardTableOfGpu90a()}};
  return {kTables, family_major == 9 ? 3u : 2u};
#else
  (void)family_major;
  return {};
#endif
}

}  // namespace cairn::device::cuda
