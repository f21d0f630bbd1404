#pragma once
// The tables of backends on CPUs that only the worker's methods need: selections, and reading a
// context by rows. The build says who defines these functions: method_tables.cc, or
// no_method_tables.cc (CAIRN_METHODS=OFF), which leaves the tables null.

#include "cairn/kernels/backend.h"

namespace cairn::kernels {

void AddReferenceMethods(Backend* backend);
// REQUIRES: Supports(isa).
void AddCpuMethods(Isa isa, Backend* backend);

}  // namespace cairn::kernels
