#pragma once
// SnapKV whose heads share a layer's budget: a head with spread attention keeps more.
//
// Source: Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for
// Efficient LLM Inference", 2024, algorithm 1, in kvpress's form: each head keeps its best alpha of
// an even share, the rest of the layer's rows are the best of all its heads. Query-aware: the
// segment's end.
//
//   keep     share of the rows that stay, in the mean over a layer's heads
//   sink     1: the sequence's first token always stays
//   window   queries that are asked; the paper has 32, 64 is kvpress's
//   pool     neighbours on each side; 2 is a kernel of 5
//   maxpool  1: pooled by the maximum, as the authors' LongBench runs (with pool=3)
//   alpha    share of an even budget that each head has at least

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct AdaSnapKv {
  static SelectionInfo Info() {
    return {.name = "ada-snapkv",
            .meaning = "snapkv, with budgets that heads compete for",
            .parameters = {KeepParameter(), SinkParameter(), WindowParameter(1, 64),
                           PoolParameter(), MaxPoolParameter(), AlphaParameter()},
            .heads_share = true};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "ada-snapkv",
                    .keep = v["keep"],
                    .sink = v["sink"] != 0,
                    .scorer = WindowScorer(v["window"], v["pool"], v["maxpool"] != 0),
                    .heads = AdaptiveHeads(v["alpha"])},
                   k);
  }
};

}  // namespace cairn::selections
