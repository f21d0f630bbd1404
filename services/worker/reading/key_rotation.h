#pragma once
// The rotation of keys and queries of which partial keys have some columns.

#include <cstdint>
#include <span>
#include <vector>

namespace cairn::worker {

// For keys [rows][dim]: the `count` eigenvectors of the sum of k k' with the largest eigenvalues,
// [count][dim], each of length 1. By cyclic Jacobi rotations in double (Golub and Van Loan, Matrix
// Computations, section 8.5). REQUIRES: 1 <= count <= dim.
std::vector<float> PrincipalColumns(std::span<const float> keys, int64_t dim, int64_t count);

// Rotations that were found offline, from the queries of a run of the model: InfiniGen's skewing
// (arXiv 2406.19707, section 4.2).
struct KeyRotations {
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  // [layers][kv_heads][head_dim][head_dim]: row i of a head is a direction of length 1.
  std::vector<float> directions;
  // [layers][kv_heads][head_dim]: mean of |q . direction i| over the run's queries of the head's
  // group.
  std::vector<float> queries;
};

// For keys [rows][dim] of a head: the `count` directions with the largest sums of their queries'
// mean and the keys' mean of |k . direction|, [count][dim] (section 4.3, whose queries are the
// prompt's). If directions are equal, the first counts. REQUIRES: 1 <= count <= dim, at least one
// key.
std::vector<float> PartialColumns(const KeyRotations& rotations, int layer, int head,
                                  std::span<const float> keys, int64_t count);

}  // namespace cairn::worker
