#pragma once
// The values that the lanes of a warp hand over to each other, for the operations of the emulation
// itself. Kernels use shuffles.

namespace cairn::kernels::cuda::on_cpu {

// The value that lane `from` of the running thread's warp gave in the last HandOver: 64 bytes,
// aligned to 16. Valid until the next HandOver but one. Only from files that no sanitizer
// instruments: nothing orders these accesses in its eyes.
const void* HandedOver(unsigned from);

}  // namespace cairn::kernels::cuda::on_cpu
