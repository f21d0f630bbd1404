#pragma once
// Norms of values behind the output projection.

#include <span>

#include "kernels/selections/stages/scorer.h"

namespace cairn::selections {

// out[g][t] = mean over the query heads h of group g of || v[g][t] W[h] ||_1, where W[h] is the
// head's part of the layer's output projection (CriticalKV, equation 8). `out`: [kv_heads][tokens].
void ProjectedNorms(const Segment& segment, int32_t layer, std::span<float> out);

}  // namespace cairn::selections
