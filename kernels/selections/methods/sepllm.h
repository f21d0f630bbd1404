#pragma once
// The first tokens, separators and the most recent rows, in every layer and head. Not query-aware.
//
// Source: Chen et al., "SepLLM: Accelerate Large Language Models by Compressing One Segment into
// One Separator", 2024, section 3. The paper trains for it and lets separators grow without bound;
// here they have at most `share` of what the first tokens leave, the latest ones of them, and the
// most recent rows have the rest. Which tokens are separators the model's vocabulary says
// (ModelAccess::separators).
//
//   keep   share of the rows that stay
//   sinks  how many of the sequence's first tokens stay
//   share  largest share of separators

#include "kernels/selections/parameters.h"

namespace cairn::selections {

std::unique_ptr<Selection> MakeSepLlm(int64_t keep, int64_t sinks, int64_t share);

struct SepLlm {
  static SelectionInfo Info() {
    return {.name = "sepllm",
            .meaning = "the first tokens, separators and the most recent ones",
            .parameters = {KeepParameter(),
                           SinksParameter(),
                           {"share", "largest share of separators", 3, 0, 1000, 500}},
            .reads = Reads::kNoNumbers};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels&) {
    return MakeSepLlm(v["keep"], v["sinks"], v["share"]);
  }
};

}  // namespace cairn::selections
