#pragma once
// The rows that got most attention from all queries when noise is added to the logits, and the most
// recent ones.
//
// Source: Adnan et al., "Keyformer: KV Cache Reduction through Key Tokens Selection for Efficient
// Generative Inference", 2024, section 3, applied once at the end of prefill. Score: softmax of
// logit + Gumbel noise, drawn again for each query and row, summed over all queries, mean over the
// query group. The paper's temperature grows while tokens are generated and is 1 in the prompt, and
// so here. Draws come from `seed`, with 12 bits each, so two workers keep the same rows.
// Query-aware: all of the segment's rows, none behind it.
//
//   keep     share of the rows that stay
//   sink     1: the sequence's first token always stays
//   recent   share of the kept rows that are the most recent ones: .3 in the authors' program
//   seed     of the draws

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct Keyformer {
  static SelectionInfo Info() {
    return {.name = "keyformer",
            .meaning = "what all rows attend to with noise, and the most recent rows",
            .parameters = {
                KeepParameter(),
                SinkParameter(),
                {"recent", "share of the kept rows that are the most recent", 3, 0, 1000, 300},
                {"seed", "of the draws", 0, 0, 1'000'000, 1}}};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "keyformer",
                    .keep = v["keep"],
                    .sink = v["sink"] != 0,
                    .scorer = NoisyScorer(v["recent"], static_cast<uint64_t>(v["seed"]))},
                   k);
  }
};

}  // namespace cairn::selections
