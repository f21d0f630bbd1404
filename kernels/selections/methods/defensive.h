#pragma once
// The rows that any of the segment's last queries might miss: the worst case instead of the mean.
//
// Source: Feng et al., "Taming the Fragility of KV Cache Eviction in LLM Inference", 2025
// (DefensiveKV). Score: largest pooled attention over the window's rows and the query group, no
// less than its mean over the rows, times mean over the group of || v W_O ||_1 as a share of all
// heads'. In each head the rows of most mean attention are kept up to `mass`; then the best of the
// layer. Query-aware: the segment's end. Needs the output projection.
//
//   keep     share of the rows that stay, in the mean over layers and heads
//   sink     1: the sequence's first token always stays
//   window   queries that are asked
//   pool     neighbours on each side; 2 is a kernel of 5
//   mass     rows that hold this share of the mean attention stay in each head
//   relative 1: of the attention to the ranked rows, less one share for the layer, and bounded by
//            (tokens - window) * keep - window rows, as in the authors' program; 0: of all
//            attention, less the window's own share in the head

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct Defensive {
  static SelectionInfo Info() {
    return {.name = "defensive",
            .meaning = "what any of the last rows attends to, by its effect",
            .parameters = {KeepParameter(), SinkParameter(), WindowParameter(1, 32),
                           PoolParameter(), MassParameter(), RelativeParameter()},
            .reads = Reads::kKeysAndValues,
            .heads_share = true};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose(
        {.name = "defensive",
         .keep = v["keep"],
         .sink = v["sink"] != 0,
         .scorer = DefensiveScorer(v["window"], v["pool"], v["mass"], v["relative"] != 0),
         .heads = AdaptiveHeads(0)},
        k);
  }
};

}  // namespace cairn::selections
