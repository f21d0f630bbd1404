#include "common/device/cuda/kernel_tables.h"

namespace cairn::device::cuda {

// No program launches kernels yet (docs/gpu.md).
std::span<const KernelTable> KernelTables() { return {}; }

}  // namespace cairn::device::cuda
