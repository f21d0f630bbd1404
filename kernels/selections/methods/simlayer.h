#pragma once
// Layers whose attention goes to the first and the most recent rows keep only these, the others
// all.
//
// Source: Zhang et al., "SimLayerKV: A Simple Framework for Layer-Level KV Cache Reduction", 2024.
// A layer is as lazy as the attention that the last `queries` queries pay to the first rows and to
// the `recent` rows before them, mean over queries and query heads, as in the authors' program. The
// paper has a threshold and no budget; here as many of the laziest layers are cut as the budget
// asks for, and what is left over lengthens the last of them. Where sinks + recent is more than an
// even budget has, all layers keep an even budget, whatever the queries ask: it is `streaming`
// then. Query-aware: the last rows.
//
//   keep     share of the rows that stay, in the mean over the layers
//   sinks    how many of the sequence's first tokens a lazy layer keeps
//   recent   how many of the most recent rows it keeps; no more than an even budget has
//   queries  how many of the last rows are asked: 32 in the authors' program

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct SimLayer {
  static SelectionInfo Info() {
    return {.name = "simlayer",
            .meaning = "lazy layers keep the first and most recent tokens, others all",
            .parameters = {KeepParameter(),
                           SinksParameter(),
                           {"recent", "most recent rows that a lazy layer keeps", 0, 1, 4096, 1024},
                           {"queries", "how many of the last rows are asked", 0, 1, 512, 32}},
            .heads_share = true};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "simlayer",
                    .keep = v["keep"],
                    .scorer = LazinessScorer(v["sinks"], v["recent"], v["queries"]),
                    .layers = LazyLayers(v["sinks"], v["recent"])},
                   k);
  }
};

}  // namespace cairn::selections
