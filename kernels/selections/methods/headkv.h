#pragma once
// SnapKV whose heads have budgets by a calibration: heads that find an answer in the context, or
// what leads to it, keep more rows.
//
// Source: Fu et al., "Not All Heads Matter: A Head-Level KV Cache Compression Method with
// Integrated Retrieval and Reasoning", 2024, section 3 (HeadKV). A head has 1 - 1 / beta of an even
// budget in addition to the window, and 1 / beta of all heads' budgets is shared out in proportion
// to the scores (tools/calibration/headkv_heads.py); then SnapKV's rows, with the authors' window
// of 32 and kernel of 7 by the maximum. The paper scores and cuts query heads, here they are KV
// heads; its program rounds each head's rows and loses or gains some, here fractions go by largest
// remainders. Query-aware: the segment's end.
//
//   keep     share of the rows that stay, in the mean over the heads
//   heads    the calibration: scores of heads for one model's weights (docs/methods/calibration.md)
//   sink     1: the sequence's first token always stays
//   window   queries that are asked
//   pool     neighbours on each side; 3 is a kernel of 7
//   maxpool  as snapkv's
//   beta     1 / beta of the budget is shared by scores; the authors try 1.005 to 10

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct HeadKv {
  static SelectionInfo Info() {
    ParameterInfo pool = PoolParameter(), maxpool = MaxPoolParameter();
    pool.fallback = 3;
    maxpool.fallback = 1;
    return {
        .name = "headkv",
        .meaning = "snapkv, with budgets by the heads' scores for finding answers",
        .parameters = {KeepParameter(),
                       HeadsParameter(),
                       SinkParameter(),
                       WindowParameter(1, 32),
                       pool,
                       maxpool,
                       {"beta", "1 / beta of the budget goes by scores", 3, 1000, 100000, 1200}}};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "headkv",
                    .keep = v["keep"],
                    .sink = v["sink"] != 0,
                    .scorer = WindowScorer(v["window"], v["pool"], Pooling{v["maxpool"]}),
                    .heads = ScoredHeads(v.heads(), v["beta"])},
                   k);
  }
};

}  // namespace cairn::selections
