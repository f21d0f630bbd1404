#pragma once
// Ada-KV's budgets of heads, CriticalKV's two stages within each head: see ada-snapkv and
// criticalkv. Query-aware: the segment's end. Needs the output projection.
//
// Source: Feng et al., "Identify Critical KV Cache in LLM Inference from an Output Perturbation
// Perspective", 2025, section 4.
//
//   keep     share of the rows that stay, in the mean over a layer's heads
//   sink     1: the sequence's first token always stays
//   window   queries that are asked, 64 as kvpress's snapkv
//   pool     neighbours on each side
//   alpha    share of an even budget that each head has at least
//   mix      1: (1 - alpha) of the best rows' budget and alpha of an even one, the authors' program
//   first    share of a head's rows that attention alone decides

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct AdaCriticalKv {
  static SelectionInfo Info() {
    return {
        .name = "ada-criticalkv",
        .meaning = "criticalkv, with budgets that heads compete for",
        .parameters = {KeepParameter(), SinkParameter(), WindowParameter(1, 64), PoolParameter(),
                       AlphaParameter(), MixParameter(), FirstStageParameter()},
        .reads = Reads::kKeysAndValues,
        .heads_share = true};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "ada-criticalkv",
                    .keep = v["keep"],
                    .sink = v["sink"] != 0,
                    .scorer = WindowScorer(v["window"], v["pool"], Pooling::kMean),
                    .heads = AdaptiveHeads(v["alpha"], v["mix"] != 0),
                    .picker = TwoStagePicker(v["first"], v["alpha"])},
                   k);
  }
};

}  // namespace cairn::selections
