#pragma once
// Rows drawn by lot, another draw for each layer and head. The control that every other selection
// must beat. Not query-aware.
//
//   keep  share of the rows that stay
//   sink  1: the sequence's first token always stays
//   seed  of the draw; segments of equal length have equal draws

#include <memory>

#include "kernels/selections/parameters.h"

namespace cairn::selections {

std::unique_ptr<Selection> MakeRandom(int64_t keep, bool sink, uint64_t seed);

struct Random {
  static SelectionInfo Info() {
    return {.name = "random",
            .meaning = "rows drawn by lot: a control",
            .parameters = {KeepParameter(),
                           SinkParameter(),
                           {"seed", "of the draw", 0, 0, 1'000'000, 1}},
            .reads = Reads::kNoNumbers};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels&) {
    return MakeRandom(v["keep"], v["sink"] != 0, static_cast<uint64_t>(v["seed"]));
  }
};

}  // namespace cairn::selections
