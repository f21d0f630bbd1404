#pragma once
// SnapKV whose first layers keep more rows than its last ones.
//
// Source: Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information
// Funneling", 2024, section 3.3: budgets fall in even steps with the mean of an even budget. In two
// forms. The authors' program: the window is added to the budget that falls, so that every budget
// has its pyramid; its steps are whole rows, here they are exact. kvpress's (beside=0): the window
// is in it, and where the last layer would keep fewer rows than the window, budgets are even. That
// is SnapKV, for all of keep < beta * window / tokens unless the first layer keeps everything.
// Query-aware: the segment's end.
//
//   keep     share of the rows that stay, in the mean over the layers
//   sink     1: the sequence's first token always stays
//   window   queries that are asked; the paper has 32, 64 is kvpress's
//   pool     neighbours on each side; 2 is a kernel of 5
//   maxpool  1: pooled by the maximum, as the authors' LongBench runs (with pool=3), then the
//            group's mean; 2: the group's mean, then pooled by the maximum, as in the programs of
//            Ada-KV and KVCache-Factory. By the mean the order does not matter.
//   beta     the last layer keeps keep / beta of the rows, if the first ones can keep the rest
//   beside   1: the window lies outside the pyramid, 0: in it, as in kvpress

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct PyramidKv {
  static SelectionInfo Info() {
    return {"pyramidkv",
            "snapkv, with budgets that fall from layer to layer",
            {KeepParameter(), SinkParameter(), WindowParameter(1, 64), PoolParameter(),
             MaxPoolParameter(), BetaParameter(), BesideParameter()}};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "pyramidkv",
                    .keep = v["keep"],
                    .sink = v["sink"] != 0,
                    .scorer = WindowScorer(v["window"], v["pool"], Pooling{v["maxpool"]}),
                    .layers = PyramidLayers(v["window"], v["beta"], v["beside"] != 0)},
                   k);
  }
};

}  // namespace cairn::selections
