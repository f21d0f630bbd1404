#pragma once
// The rows that the segment's last queries attend to, and these last rows.
//
// Source: Li et al., "SnapKV: LLM Knows What You are Looking for Before Generation", 2024, section
// 4. Score: softmax attention of the last `window` queries, mean over them, pooled over neighbours,
// mean over the query group (the paper selects for each query head). Query-aware: the segment's
// end. The preset snapkv-paper has window 32, pool 3 and maxpool 1, as the authors' LongBench runs.
//
//   keep     share of the rows that stay, the window included
//   sink     1: the sequence's first token always stays
//   window   queries that are asked; the paper has 32, 64 is kvpress's
//   pool     neighbours on each side; 2 is a kernel of 5
//   maxpool  1: pooled by the maximum, as the authors' LongBench runs (with pool=3), then the
//            group's mean; 2: the group's mean, then pooled by the maximum, as in the programs of
//            Ada-KV and KVCache-Factory. By the mean the order does not matter.

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct SnapKv {
  static SelectionInfo Info() {
    return {.name = "snapkv",
            .meaning = "what the last rows attend to",
            .parameters = {KeepParameter(), SinkParameter(), WindowParameter(1, 64),
                           PoolParameter(), MaxPoolParameter()},
            .presets = {{"snapkv-paper", {{"window", 32}, {"pool", 3}, {"maxpool", 1}}}}};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "snapkv",
                    .keep = v["keep"],
                    .sink = v["sink"] != 0,
                    .scorer = WindowScorer(v["window"], v["pool"], Pooling{v["maxpool"]})},
                   k);
  }
};

}  // namespace cairn::selections
