#pragma once
// The rows that all queries of a layer attended to most, with as many rows in each layer as hold
// the same share of its attention.
//
// Source: Wang et al., "PrefixKV: Adaptive Prefix KV Cache is What Vision Instruction-Following
// Models Need for Efficient Generation", 2024, section 3.2. Score: sum over all queries, mean over
// all query heads, so all heads of a layer keep the same rows. The paper finds the share by binary
// search, once for a model over sample texts, and then keeps the layers' numbers of rows; here the
// search is exact and each segment's own. The first `sinks` rows and the last one are kept in
// addition to these rows, as in the authors' program. Query-aware: all of the segment's rows, none
// behind it.
//
//   keep     share of the rows that stay, in the mean over the layers
//   sinks    how many of the sequence's first tokens stay

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct PrefixKv {
  static SelectionInfo Info() {
    return {.name = "prefixkv",
            .meaning = "what all rows attend to, the same share of attention in each layer",
            .parameters = {KeepParameter(), SinksParameter()},
            .heads_share = true};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "prefixkv",
                    .keep = v["keep"],
                    .scorer = LayerSumsScorer(v["sinks"]),
                    .layers = PrefixLayers()},
                   k);
  }
};

}  // namespace cairn::selections
