#pragma once
// The rows that the segment's last queries attend to, and these last rows.
//
// Source: Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", 2024, section
// 4. Score: softmax attention of the last `window` queries, mean over them, pooled over neighbours,
// mean over the query group (the paper selects for each query head). Query-aware: the segment's
// end.
//
//   keep     share of the rows that stay, the window included
//   sink     1: the sequence's first token always stays
//   window   queries that are asked; the paper has 32, 64 is kvpress's
//   pool     neighbours on each side; 2 is a kernel of 5
//   maxpool  1: pooled by the maximum, as the authors' LongBench runs (with pool=3)

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct SnapKv {
  static SelectionInfo Info() {
    return {"snapkv",
            "what the last rows attend to",
            {KeepParameter(), SinkParameter(), WindowParameter(1, 64), PoolParameter(),
             MaxPoolParameter()}};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "snapkv",
                    .keep = v["keep"],
                    .sink = v["sink"] != 0,
                    .scorer = WindowScorer(v["window"], v["pool"], v["maxpool"] != 0)},
                   k);
  }
};

}  // namespace cairn::selections
