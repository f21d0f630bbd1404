#pragma once
// Rows drawn by lot, another draw for each layer and head. The control that every other selection
// must beat. Not query-aware.
//
//   keep  share of the rows that stay
//   sink  1: the sequence's first token always stays
//   seed  of the draw; segments of equal length have equal draws

#include <memory>

#include "kernels/selections/selection.h"

namespace cairn::selections {

std::unique_ptr<Selection> MakeRandom(int64_t keep, bool sink, uint64_t seed);

}  // namespace cairn::selections
