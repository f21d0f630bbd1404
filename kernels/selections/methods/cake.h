#pragma once
// Rows whose attention is large or changes over the window; layers with spread, changing attention
// keep more.
//
// Source: Qin et al., "CAKE: Cascading and Adaptive KV Cache Eviction with Layer Preferences",
// 2025, sections 4.1 and 4.2. Score: mean + gamma * variance of the window's attention, pooled,
// mean over the query group. A layer's share is entropy^(1/space) * (sum of variances)^(1/time).
// Query-aware: the segment's end.
//
//   keep     share of the rows that stay, in the mean over the layers
//   sink     1: the sequence's first token always stays
//   window   queries that are asked
//   pool     neighbours on each side
//   gamma    weight of the variance
//   space    temperature of the entropy
//   time     temperature of the variance

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct Cake {
  static SelectionInfo Info() {
    return {.name = "cake",
            .meaning = "snapkv with variance, and budgets by the layers' preference",
            .parameters = {KeepParameter(),
                           SinkParameter(),
                           WindowParameter(2, 32),
                           PoolParameter(),
                           {"gamma", "weight of the variance", 0, 0, 10000, 200},
                           {"space", "temperature of the entropy", 1, 1, 100, 16},
                           {"time", "temperature of the variance", 1, 1, 100, 6}},
            .heads_share = true};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose(
        {.name = "cake",
         .keep = v["keep"],
         .sink = v["sink"] != 0,
         .scorer = VarianceScorer(v["window"], v["pool"], v["gamma"], v["space"], v["time"]),
         .layers = WeightedLayers(v["window"])},
        k);
  }
};

}  // namespace cairn::selections
