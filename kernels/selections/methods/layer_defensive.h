#pragma once
// DefensiveKV whose budget is the whole model's: see defensive. Query-aware: the segment's end.
// Needs the output projection.
//
// Source: Feng et al., "Taming the Fragility of KV Cache Eviction in LLM Inference", 2025
// (Layer-DefensiveKV).
//
//   keep     share of the rows that stay, in the mean over layers and heads
//   sink     1: the sequence's first token always stays
//   window   queries that are asked
//   pool     neighbours on each side; 2 is a kernel of 5
//   mass     rows that hold this share of the mean attention stay in each head

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct LayerDefensive {
  static SelectionInfo Info() {
    return {.name = "layer-defensive",
            .meaning = "defensive, with budgets that all layers compete for",
            .parameters = {KeepParameter(), SinkParameter(), WindowParameter(1, 32),
                           PoolParameter(), MassParameter(), RelativeParameter()},
            .reads = Reads::kKeysAndValues,
            .heads_share = true};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose(
        {.name = "layer-defensive",
         .keep = v["keep"],
         .sink = v["sink"] != 0,
         .scorer = DefensiveScorer(v["window"], v["pool"], v["mass"], v["relative"] != 0),
         .heads = WholeModel()},
        k);
  }
};

}  // namespace cairn::selections
