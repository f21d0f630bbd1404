#define CAIRN_KERNEL_NS portable
#include "kernels/cpu/backends.h"
#include "kernels/cpu/kernels.inc.h"

namespace cairn::kernels {

Backend MakePortableBackend() { return portable::FloatBackend("portable"); }

}  // namespace cairn::kernels
