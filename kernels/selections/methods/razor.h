#pragma once
// Retrieval heads keep all rows, others the first and the most recent ones. Not query-aware.
//
// Source: Tang et al., "RazorAttention: Efficient KV Cache Compression Through Retrieval Heads",
// 2024, section 3. A head's score comes from its attention to equal tokens and to those behind
// them, on random tokens that repeat (tools/calibration/razor_heads.py). The paper keeps a fixed 15
// % of the heads whole; here as many as the budget asks for, and the next one has what is left
// over. The paper's compensation token, the mean of what is dropped, is left out: a stored row is a
// row of some token.
//
//   keep    share of the rows that stay, in the mean over the heads
//   heads   the calibration: scores of heads for one model's weights (docs/methods/calibration.md)
//   sinks   how many of the sequence's first tokens a streaming head keeps
//   recent  how many of the most recent rows it keeps; no more than an even budget has

#include "kernels/selections/stages/head_classes.h"

namespace cairn::selections {

struct Razor {
  static SelectionInfo Info() {
    return {.name = "razor",
            .meaning = "heads that copy keep all, others the first and most recent tokens",
            .parameters = HeadClassParameters(),
            .reads = Reads::kNoNumbers};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return HeadClasses("razor", v, k);
  }
};

}  // namespace cairn::selections
