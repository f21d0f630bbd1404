#pragma once
// SnapKV whose first layers keep more rows than its last ones.
//
// Source: Cai et al., "PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information
// Funneling", 2024, section 3.3, in kvpress's form: budgets fall in even steps with the mean of an
// even budget; where the last layer would keep fewer rows than the window, they are even (it is
// SnapKV then). Query-aware: the segment's end.
//
//   keep     share of the rows that stay, in the mean over the layers
//   sink     1: the sequence's first token always stays
//   window   queries that are asked; the paper has 32, 64 is kvpress's
//   pool     neighbours on each side; 2 is a kernel of 5
//   maxpool  1: pooled by the maximum, as the authors' LongBench runs (with pool=3)
//   beta     the last layer keeps keep / beta of the rows, if the first ones can keep the rest

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct PyramidKv {
  static SelectionInfo Info() {
    return {"pyramidkv",
            "snapkv, with budgets that fall from layer to layer",
            {KeepParameter(), SinkParameter(), WindowParameter(1, 64), PoolParameter(),
             MaxPoolParameter(), BetaParameter()}};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "pyramidkv",
                    .keep = v["keep"],
                    .sink = v["sink"] != 0,
                    .scorer = WindowScorer(v["window"], v["pool"], v["maxpool"] != 0),
                    .layers = PyramidLayers(v["window"], v["beta"])},
                   k);
  }
};

}  // namespace cairn::selections
