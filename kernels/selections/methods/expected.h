#pragma once
// Rows by the attention that future queries would pay, were they distributed as the segment's own.
//
// Source: Devoto et al., "Expected Attention: KV Cache Compression by Estimating Attention from
// Future Queries Distribution", 2025, section 3. Score: softmax of m.k / sqrt(d) + k'Ck / 2d with
// mean m and covariance C of the queries before RoPE, turned by the mean rotation of the next
// `future` positions; mean over the query group, times ||v||. Query-aware: all of the segment's
// rows (the sequence's first four left out), none behind it.
//
//   keep     share of the rows that stay
//   sinks    how many of the sequence's first tokens stay
//   future   queries are expected at this many positions behind the segment

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct Expected {
  static SelectionInfo Info() {
    return {.name = "expected",
            .meaning = "what queries to come are expected to attend to",
            .parameters = {KeepParameter(),
                           SinksParameter(),
                           {"future", "positions at which queries are expected", 0, 1, 4096, 512}},
            .reads = Reads::kKeysAndValues};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "expected",
                    .keep = v["keep"],
                    .scorer = ExpectedScorer(v["sinks"], v["future"], 0.0f)},
                   k);
  }
};

}  // namespace cairn::selections
