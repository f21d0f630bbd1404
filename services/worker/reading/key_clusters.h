#pragma once
// Groups of keys that point in similar directions: k-means, as SqueezedAttention (arXiv 2411.09688,
// section 3.1) clusters the keys of a context that many requests share.

#include <cstdint>
#include <span>
#include <vector>

#include "cairn/kernels/backend.h"

namespace cairn::worker {

// Clusters are numbered with 16 bits.
inline constexpr int64_t kMostClusters = 1 << 16;

struct KeyClusters {
  std::vector<uint16_t> of_row;  // [rows]
  std::vector<float> means;      // [count][dim]: of the keys as they are. Without keys: zeros.
};

// Lloyd's k-means of keys [rows][dim] that are first scaled to length 1. The first centres are rows
// at even distances, and at most 8 rounds follow, so equal keys give equal clusters. A cluster that
// loses all keys keeps its centre. `backend` runs inline. REQUIRES: 1 <= count <= rows, count <=
// kMostClusters, finite keys that are binary16 numbers.
KeyClusters ClusterKeys(std::span<const float> keys, int64_t dim, int64_t count,
                        const kernels::Backend& backend);

}  // namespace cairn::worker
