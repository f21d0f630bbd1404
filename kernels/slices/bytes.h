#pragma once
// Hashes of runs and moves of pages on the host (slice_kernels.h).

#include "cairn/kernels/codec/slice_kernels.h"

namespace cairn::kernels {

void HashRuns(const HashRunsArgs& a);
void GatherPages(const MovePagesArgs& a);
void ScatterPages(const MovePagesArgs& a);

}  // namespace cairn::kernels
