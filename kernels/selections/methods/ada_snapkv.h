#pragma once
// SnapKV whose heads share a layer's budget: a head with spread attention keeps more.
//
// Source: Feng et al., "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for
// Efficient LLM Inference", 2024, algorithm 1, in two forms. kvpress's: each head keeps its best
// alpha of an even share, the rest of the layer's rows are the best of all its heads. The authors'
// program (mix=1): B_h = (1 - alpha) f_h + alpha B in addition to the window, where f_h is the
// number of the head's rows among the best of the layer; the program rounds each B_h, here
// fractions go by largest remainders. Query-aware: the segment's end. The preset ada-snapkv-paper
// has window 32, pool 3, maxpool 2 and mix 1, as the program runs.
//
//   keep     share of the rows that stay, in the mean over a layer's heads
//   sink     1: the sequence's first token always stays
//   window   queries that are asked; the paper has 32, 64 is kvpress's
//   pool     neighbours on each side; 2 is a kernel of 5
//   maxpool  1: pooled by the maximum, as the authors' LongBench runs (with pool=3), then the
//            group's mean; 2: the group's mean, then pooled by the maximum, as in the programs of
//            Ada-KV and KVCache-Factory. By the mean the order does not matter.
//   alpha    share of an even budget that each head has at least
//   mix      1: (1 - alpha) of the best rows' budget and alpha of an even one, the authors' program

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct AdaSnapKv {
  static SelectionInfo Info() {
    return {.name = "ada-snapkv",
            .meaning = "snapkv, with budgets that heads compete for",
            .parameters = {KeepParameter(), SinkParameter(), WindowParameter(1, 64),
                           PoolParameter(), MaxPoolParameter(), AlphaParameter(), MixParameter()},
            .heads_share = true,
            .presets = {
                {"ada-snapkv-paper", {{"window", 32}, {"pool", 3}, {"maxpool", 2}, {"mix", 1}}}}};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "ada-snapkv",
                    .keep = v["keep"],
                    .sink = v["sink"] != 0,
                    .scorer = WindowScorer(v["window"], v["pool"], Pooling{v["maxpool"]}),
                    .heads = AdaptiveHeads(v["alpha"], v["mix"] != 0)},
                   k);
  }
};

}  // namespace cairn::selections
