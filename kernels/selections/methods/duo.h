#pragma once
// Retrieval heads keep all rows, streaming heads the first and the most recent ones. Not
// query-aware.
//
// Source: Xiao et al., "DuoAttention: Efficient Long-Context LLM Inference with Retrieval and
// Streaming Heads", 2024, section 2. A head's score is a gate between full and streaming attention
// that was trained on passkeys to close (tools/calibration/duo_heads.py). The paper has a threshold
// on it; here as many heads of the largest scores keep all as the budget asks for, and the next one
// has what is left over. Keys keep their original positions, and the prefill is dense: the paper's
// streaming heads stream there, too.
//
//   keep    share of the rows that stay, in the mean over the heads
//   heads   the calibration: scores of heads for one model's weights (docs/methods/calibration.md)
//   sinks   how many of the sequence's first tokens a streaming head keeps
//   recent  how many of the most recent rows it keeps; no more than an even budget has

#include "kernels/selections/stages/head_classes.h"

namespace cairn::selections {

struct Duo {
  static SelectionInfo Info() {
    return {.name = "duo",
            .meaning = "trained retrieval heads keep all, others the first and most recent tokens",
            .parameters = HeadClassParameters(),
            .reads = Reads::kNoNumbers};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return HeadClasses("duo", v, k);
  }
};

}  // namespace cairn::selections
