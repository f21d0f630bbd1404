#include "common/device/cuda/kernel_tables.h"

#include "kernels/cuda/forward_table.h"

namespace cairn::device::cuda {

// The table for compute capability 9.0a stays out: whether a device has it is not asked here yet.
std::span<const KernelTable> KernelTables() {
  namespace batch = kernels::batch;
  static const KernelTable kTables[] = {{batch::kForwardTableName, batch::kForwardTableVersion,
                                         &kernels::cuda::ForwardTableOfGpu()}};
  return kTables;
}

}  // namespace cairn::device::cuda
