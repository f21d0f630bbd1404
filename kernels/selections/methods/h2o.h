#pragma once
// Heavy hitters: the rows that got most attention from all queries of the segment, and the most
// recent ones.
//
// Source: Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large
// Language Models", 2023, section 4, applied once at the end of prefill. Score: column sums of the
// causal softmax, mean over the query group. Query-aware: all of the segment's rows, none behind
// it.
//
//   keep     share of the rows that stay
//   sink     1: the sequence's first token always stays
//   recent   share of these that are the most recent rows

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct H2o {
  static SelectionInfo Info() {
    return {"h2o",
            "what all rows attended to, and the most recent ones",
            {KeepParameter(),
             SinkParameter(),
             {"recent", "share of the kept rows that are the most recent ones", 3, 0, 1000, 500}}};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "h2o",
                    .keep = v["keep"],
                    .sink = v["sink"] != 0,
                    .scorer = AccumulatedScorer(v["recent"])},
                   k);
  }
};

}  // namespace cairn::selections
