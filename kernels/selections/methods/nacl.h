#pragma once
// Some rows by the attention of proxy tokens, the others by a lot that attention weighs.
//
// Source: Chen et al., "NACL: A General and Effective KV Cache Eviction Framework for LLMs at
// Inference Time", 2024, section 3. Score: attention of the proxies, summed, mean over the query
// group. A head keeps its best rows in addition to the protected ones; the share `lot` of its rows
// is drawn instead, without replacement, with probabilities softmax(score). The authors' program
// takes its last 1 % of tokens as proxies, without a causal mask among them, and protects 256 first
// tokens; here the proxies are the last `window` rows, causal, and stay, and the first token stays.
// Draws come from `seed`, so two workers keep the same rows. Query-aware: the segment's end.
//
//   keep     share of the rows that stay, the window included
//   sink     1: the sequence's first token always stays
//   window   proxies
//   lot      share of a head's rows that is drawn: .07 of .19 in the authors' program
//   seed     of the draw

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct Nacl {
  static SelectionInfo Info() {
    return {.name = "nacl",
            .meaning = "what the last rows attend to, and rows by a lot that they weigh",
            .parameters = {KeepParameter(),
                           SinkParameter(),
                           WindowParameter(1, 32),
                           {"lot", "share of the rows that is drawn by lot", 3, 0, 1000, 370},
                           {"seed", "of the draw", 0, 0, 1'000'000, 1}}};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose(
        {.name = "nacl",
         .keep = v["keep"],
         .sink = v["sink"] != 0,
         .scorer = WindowScorer(v["window"], 0, Pooling::kMean),
         .picker = LotteryPicker(v["lot"], v["window"], static_cast<uint64_t>(v["seed"]))},
        k);
  }
};

}  // namespace cairn::selections
