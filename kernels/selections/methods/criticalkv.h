#pragma once
// SnapKV in two stages: half of the rows by attention, the others by attention times the norm of
// the value behind the output projection.
//
// Source: Feng et al., "Identify Critical KV Cache in LLM Inference from an Output Perturbation
// Perspective", 2025, algorithm 1: second stage by (score + 1e-4) * mean over the group of || v W_O
// ||_1. Query-aware: the segment's end. Needs the output projection.
//
//   keep     share of the rows that stay, the window included
//   sink     1: the sequence's first token always stays
//   window   queries that are asked, 64 as kvpress's snapkv
//   pool     neighbours on each side
//   first    share of the rows that attention alone decides

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct CriticalKv {
  static SelectionInfo Info() {
    return {.name = "criticalkv",
            .meaning = "what the last rows attend to, and what changes the output",
            .parameters = {KeepParameter(), SinkParameter(), WindowParameter(1, 64),
                           PoolParameter(), FirstStageParameter()},
            .reads = Reads::kKeysAndValues};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "criticalkv",
                    .keep = v["keep"],
                    .sink = v["sink"] != 0,
                    .scorer = WindowScorer(v["window"], v["pool"], Pooling::kMean),
                    .picker = TwoStagePicker(v["first"], 0)},
                   k);
  }
};

}  // namespace cairn::selections
