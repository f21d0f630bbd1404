#pragma once
// Rows whose keys have the smallest norms. Not query-aware.
//
// Source: Devoto et al., "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression",
// 2024. Score: -||k||, after RoPE, which keeps norms.
//
//   keep     share of the rows that stay
//   sink     1: the sequence's first token always stays

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct Knorm {
  static SelectionInfo Info() {
    return {"knorm", "keys of small norm", {KeepParameter(), SinkParameter()}};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose(
        {.name = "knorm", .keep = v["keep"], .sink = v["sink"] != 0, .scorer = KeyNormScorer()}, k);
  }
};

}  // namespace cairn::selections
