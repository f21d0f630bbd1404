#pragma once
// Rows whose channels spread far from the range of the next block's. Not query-aware.
//
// Source: Liang et al., "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are
// Important", 2025, section 3. Score: keys and values scaled by the next block's channel minima and
// maxima, standard deviation over channels, softmax in the block, mean of keys and values; then the
// rank in the block. The last whole block and what follows it stay; a segment shorter than two
// blocks is ranked by recency.
//
//   keep     share of the rows that stay
//   sinks    how many of the sequence's first tokens stay; blocks begin behind them
//   lag      rows of a block

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct LagKv {
  static SelectionInfo Info() {
    return {.name = "lagkv",
            .meaning = "rows that vary unlike the rows behind them",
            .parameters = {KeepParameter(),
                           SinksParameter(),
                           {"lag", "rows of a block", 0, 2, 1024, 128}},
            .reads = Reads::kKeysAndValues};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "lagkv", .keep = v["keep"], .scorer = LagScorer(v["sinks"], v["lag"])},
                   k);
  }
};

}  // namespace cairn::selections
