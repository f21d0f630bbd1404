#include "kernels/selections/stages/projected_norm.h"

#include <vector>

#include "kernels/selections/stages/scratch.h"

namespace cairn::selections {
namespace {

constexpr int64_t kPieceTokens = 512;

}  // namespace

void ProjectedNorms(const Segment& segment, int32_t layer, std::span<float> out) {
  const ModelShape& shape = segment.shape;
  const int64_t tokens = segment.kv.tokens, dim = shape.head_dim, hidden = shape.hidden;
  const auto width = static_cast<size_t>(shape.query_heads * dim);
  std::vector<float> projection(width * static_cast<size_t>(hidden));
  segment.model.output_projection(layer, projection.data());
  // By head and output column: [query_heads][hidden][head_dim].
  std::vector<float> turned(projection.size());
  segment.pool.ParallelFor(shape.query_heads, [&](int64_t head, int) {
    const float* from = projection.data() + head * dim * hidden;
    float* to = turned.data() + head * dim * hidden;
    for (int64_t d = 0; d < dim; ++d) {
      for (int64_t o = 0; o < hidden; ++o) to[o * dim + d] = from[d * hidden + o];
    }
  });

  Scratch scratch(segment.pool.threads(),
                  kernels::SelectionScratchBytes(dim, kernels::kProjectedRows));
  const int64_t pieces = (tokens + kPieceTokens - 1) / kPieceTokens;
  const auto group = static_cast<float>(shape.group());
  segment.pool.ParallelFor(shape.kv_heads * pieces, [&](int64_t piece, int thread) {
    const int64_t g = piece / pieces, begin = piece % pieces * kPieceTokens;
    const int64_t end = begin + kPieceTokens < tokens ? begin + kPieceTokens : tokens;
    float* norms = out.data() + g * tokens + begin;
    for (int64_t t = begin; t < end; ++t) norms[t - begin] = 0.0f;
    for (int64_t head = g * shape.group(); head < (g + 1) * shape.group(); ++head) {
      segment.kernels.projected_norms(
          segment.stream, {{segment.kv.layers[static_cast<size_t>(layer)], true, g, begin, end},
                           turned.data() + head * dim * hidden,
                           hidden,
                           norms,
                           scratch.Bytes(thread)});
    }
    for (int64_t t = begin; t < end; ++t) norms[t - begin] /= group;
  });
}

}  // namespace cairn::selections
