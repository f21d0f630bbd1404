#pragma once
// ExpectedAttention with Ada-KV's budgets of heads: see expected and ada-snapkv. Query-aware: all
// of the segment's rows, none behind it. Score: (attention + 0.01) * ||v||, as kvpress advises with
// Ada-KV.
//
// Source: Feng et al., "Ada-KV", 2024; Devoto et al., "Expected Attention", 2025.
//
//   keep     share of the rows that stay, in the mean over a layer's heads
//   sinks    how many of the sequence's first tokens stay
//   future   queries are expected at this many positions behind the segment
//   alpha    share of an even budget that each head has at least
//   mix      1: (1 - alpha) of the best rows' budget and alpha of an even one, the authors' program

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct AdaExpected {
  static SelectionInfo Info() {
    return {.name = "ada-expected",
            .meaning = "expected, with budgets that heads compete for",
            .parameters = {KeepParameter(),
                           SinksParameter(),
                           {"future", "positions at which queries are expected", 0, 1, 4096, 512},
                           AlphaParameter(),
                           MixParameter()},
            .reads = Reads::kKeysAndValues,
            .heads_share = true};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "ada-expected",
                    .keep = v["keep"],
                    .scorer = ExpectedScorer(v["sinks"], v["future"], 1e-2f),
                    .heads = AdaptiveHeads(v["alpha"], v["mix"] != 0)},
                   k);
  }
};

}  // namespace cairn::selections
