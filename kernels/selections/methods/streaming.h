#pragma once
// The first tokens and the most recent ones, in every layer and head. Not query-aware.
//
// Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", 2023, section
// 3.2. Keys keep their original positions here; the paper gives the kept ones new numbers.
//
//   keep   share of the rows that stay
//   sinks  of these, how many are the sequence's first ones; a later segment has none

#include <memory>

#include "kernels/selections/parameters.h"

namespace cairn::selections {

std::unique_ptr<Selection> MakeStreaming(int64_t keep, int64_t sinks);

struct Streaming {
  static SelectionInfo Info() {
    return {.name = "streaming",
            .meaning = "the first tokens and the most recent ones",
            .parameters = {KeepParameter(), SinksParameter()},
            .reads = Reads::kNoNumbers};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels&) {
    return MakeStreaming(v["keep"], v["sinks"]);
  }
};

}  // namespace cairn::selections
