#pragma once
// Rows whose keys point away from the mean direction of all keys. Not query-aware.
//
// Source: Park et al., "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM
// Inference in Resource-Constrained Environments", 2025. Score: -cos(k, mean of k / ||k|| over the
// segment).
//
//   keep     share of the rows that stay
//   sink     1: the sequence's first token always stays

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct KeyDiff {
  static SelectionInfo Info() {
    return {"keydiff", "keys unlike the mean key", {KeepParameter(), SinkParameter()}};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "keydiff",
                    .keep = v["keep"],
                    .sink = v["sink"] != 0,
                    .scorer = KeyDifferenceScorer()},
                   k);
  }
};

}  // namespace cairn::selections
