#pragma once
// A model's weights in the order of the matrix kernels.

#include <vector>

#include "cairn/kernels/packed_matrix.h"
#include "cairn/kernels/thread_pool.h"
#include "model/model.h"

namespace cairn::worker {

// Rows of q and k are in half-split order here (HalfSplitRow). Immutable.
struct PackedLayer {
  std::vector<float> attn_norm;
  std::vector<float> ffn_norm;
  kernels::PackedMatrix q, k, v, o, gate, up, down;
};

struct PackedWeights {
  std::vector<PackedLayer> layers;
  std::vector<float> output_norm;
  kernels::PackedMatrix output;

  size_t bytes() const;
};

// Packs all matrices, by panels, on the pool's threads. Afterwards only the token embedding of the
// model is still needed, which is read row by row.
PackedWeights PackWeights(const model::Model& model, kernels::ThreadPool* pool);

}  // namespace cairn::worker
