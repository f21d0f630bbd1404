#pragma once
// SnapKV's scores, but whole chunks of neighbouring rows, the same for all heads of a layer.
//
// Source: Liu et al., "ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context
// LLM Inference", 2025, algorithms 1 and 2, in kvpress's form: scores summed over heads, mean over
// the chunk, floor(chunks * keep) chunks; those that touch the window come first. Query-aware: the
// segment's end. The preset chunkkv-paper has window 32, chunk 10 and reuse 2.
//
//   keep     share of the chunks that stay
//   sink     1: the sequence's first chunk always stays
//   window   queries that are asked, 64 as kvpress's snapkv
//   pool     neighbours on each side
//   chunk    rows of a chunk: kvpress has 20, the paper 10
//   reuse    layers that keep the rows of the first of them and are not scored; the paper's is 2
//   chunked  share of the layers, from the first on, that keep chunks; the others keep single rows

#include "kernels/selections/parameters.h"
#include "kernels/selections/stages/compose.h"

namespace cairn::selections {

struct ChunkKv {
  static SelectionInfo Info() {
    return {
        .name = "chunkkv",
        .meaning = "chunks that the last rows attend to",
        .parameters = {KeepParameter(),
                       SinkParameter(),
                       WindowParameter(1, 64),
                       PoolParameter(),
                       {"chunk", "rows of a chunk", 0, 1, 256, 20},
                       {"reuse", "this many neighbouring layers keep the same rows", 0, 1, 16, 1},
                       {"chunked", "share of the layers that keep chunks", 3, 0, 1000, 1000}},
        .heads_share = true,
        .presets = {{"chunkkv-paper", {{"window", 32}, {"chunk", 10}, {"reuse", 2}}}}};
  }
  static std::unique_ptr<Selection> Make(const Values& v, const kernels::SelectionKernels& k) {
    return Compose({.name = "chunkkv",
                    .keep = v["keep"],
                    .sink = v["sink"] != 0,
                    .scorer = WindowScorer(v["window"], v["pool"], Pooling::kMean),
                    .picker = ChunkPicker(v["chunk"], v["chunked"]),
                    .reuse = static_cast<int32_t>(v["reuse"])},
                   k);
  }
};

}  // namespace cairn::selections
