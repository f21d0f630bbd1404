#pragma once
// The directions in which keys spread most: the rotation and the columns of partial keys.

#include <cstdint>
#include <span>
#include <vector>

namespace cairn::worker {

// Of keys [rows][dim]: the `count` eigenvectors of the sum of k k' with the largest eigenvalues,
// [count][dim], each of length 1. By cyclic Jacobi rotations in double (Golub and Van Loan, Matrix
// Computations, section 8.5). REQUIRES: 1 <= count <= dim.
std::vector<float> PrincipalColumns(std::span<const float> keys, int64_t dim, int64_t count);

}  // namespace cairn::worker
