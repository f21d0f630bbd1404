// Backends of a build without the worker's methods (CAIRN_METHODS=OFF).

#include "kernels/method_tables.h"

namespace cairn::kernels {

void AddReferenceMethods(Backend* /*backend*/) {}

void AddCpuMethods(Isa /*isa*/, Backend* /*backend*/) {}

}  // namespace cairn::kernels
