#pragma once
// PyramidKV's budgets of layers, Ada-KV's within each layer: see pyramidkv and ada-snapkv.
// Query-aware: the segment's end.
//
// Source: Feng et al., "Ada-KV", 2024, section 4.3.
//
//   keep     share of the rows that stay, in the mean over layers and heads
//   sink     1: the sequence's first token always stays
//   window   queries that are asked; the paper has 32, 64 is kvpress's
//   pool     neighbours on each side; 2 is a kernel of 5
//   maxpool  1: pooled by the maximum, as the authors' LongBench runs (with pool=3), then the
//            group's mean; 2: the group's mean, then pooled by the maximum, as in the programs of
//            Ada-KV and KVCache-Factory. By the mean the order does not matter.
//   beta     the last layer keeps keep / beta of the rows, if the first ones can keep the rest
//   beside   1: the window lies outside the pyramid, 0: in it, as in kvpress: see pyramidkv
//   alpha    share of a layer's even budget that each head has at least
//   mix      1: (1 - alpha) of the best rows' budget and alpha of an even one, the authors' program

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct AdaPyramidKv {
  static SelectionInfo Info() {
    return {.name = "ada-pyramidkv",
            .meaning = "pyramidkv, with budgets that heads compete for",
            .parameters = {KeepParameter(), SinkParameter(), WindowParameter(1, 64),
                           PoolParameter(), MaxPoolParameter(), BetaParameter(), BesideParameter(),
                           AlphaParameter(), MixParameter()},
            .heads_share = true};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "ada-pyramidkv",
                    .keep = v["keep"],
                    .sink = v["sink"] != 0,
                    .scorer = WindowScorer(v["window"], v["pool"], Pooling{v["maxpool"]}),
                    .layers = PyramidLayers(v["window"], v["beta"], v["beside"] != 0),
                    .heads = AdaptiveHeads(v["alpha"], v["mix"] != 0)},
                   k);
  }
};

}  // namespace cairn::selections
