#pragma once
// The rows that the segment's last query attends to, the same for all heads of a layer.
//
// Source: Oren et al., "Transformers are Multi-State RNNs", 2024, section 3.2, applied once at the
// end of prefill. Score: softmax attention, mean over all query heads. Query-aware: the last row.
//
//   keep     share of the rows that stay, the last one included
//   sink     1: the sequence's first token always stays

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct Tova {
  static SelectionInfo Info() {
    return {.name = "tova",
            .meaning = "what the last row attends to",
            .parameters = {KeepParameter(), SinkParameter()},
            .heads_share = true};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose(
        {.name = "tova", .keep = v["keep"], .sink = v["sink"] != 0, .scorer = LastQueryScorer()},
        k);
  }
};

}  // namespace cairn::selections
