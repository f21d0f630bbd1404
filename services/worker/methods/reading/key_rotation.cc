#include "services/worker/methods/reading/key_rotation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace cairn::worker {
namespace {

// A symmetric matrix and the rotations that have been applied to it.
class Jacobi {
 public:
  Jacobi(std::span<const float> keys, int64_t dim)
      : n_(static_cast<size_t>(dim)), a_(n_ * n_), v_(n_ * n_) {
    for (size_t row = 0; row + n_ <= keys.size(); row += n_) {
      for (size_t i = 0; i < n_; ++i) {
        const double x = static_cast<double>(keys[row + i]);
        for (size_t j = 0; j <= i; ++j) a_[i * n_ + j] += x * static_cast<double>(keys[row + j]);
      }
    }
    for (size_t i = 0; i < n_; ++i) {
      v_[i * n_ + i] = 1;
      for (size_t j = 0; j < i; ++j) a_[j * n_ + i] = a_[i * n_ + j];
    }
  }

  void Run() {
    constexpr int kMostSweeps = 12;
    for (int sweep = 0; sweep < kMostSweeps && OffDiagonal() > 1e-18 * Diagonal(); ++sweep) {
      for (size_t p = 0; p + 1 < n_; ++p) {
        for (size_t q = p + 1; q < n_; ++q) Rotate(p, q);
      }
    }
  }

  double Value(size_t i) const { return a_[i * n_ + i]; }
  // Eigenvector i.
  const double* Vector(size_t i) const { return v_.data() + i * n_; }

 private:
  double OffDiagonal() const {
    double sum = 0;
    for (size_t i = 0; i < n_; ++i) {
      for (size_t j = 0; j < i; ++j) sum += a_[i * n_ + j] * a_[i * n_ + j];
    }
    return sum;
  }
  double Diagonal() const {
    double sum = 0;
    for (size_t i = 0; i < n_; ++i) sum += Value(i) * Value(i);
    return sum;
  }
  void Rotate(size_t p, size_t q) {
    const double apq = a_[p * n_ + q];
    if (apq == 0) return;
    const double theta = (Value(q) - Value(p)) / (2 * apq);
    const double t = (theta >= 0 ? 1.0 : -1.0) / (std::fabs(theta) + std::sqrt(theta * theta + 1));
    const double c = 1 / std::sqrt(t * t + 1), s = t * c;
    for (size_t k = 0; k < n_; ++k) {
      const double x = a_[k * n_ + p], y = a_[k * n_ + q];
      a_[k * n_ + p] = c * x - s * y;
      a_[k * n_ + q] = s * x + c * y;
    }
    for (size_t k = 0; k < n_; ++k) {
      const double x = a_[p * n_ + k], y = a_[q * n_ + k];
      a_[p * n_ + k] = c * x - s * y;
      a_[q * n_ + k] = s * x + c * y;
      const double u = v_[p * n_ + k], w = v_[q * n_ + k];
      v_[p * n_ + k] = c * u - s * w;
      v_[q * n_ + k] = s * u + c * w;
    }
  }

  const size_t n_;
  std::vector<double> a_;
  std::vector<double> v_;  // Rows are the eigenvectors.
};

}  // namespace

std::vector<float> PrincipalColumns(std::span<const float> keys, int64_t dim, int64_t count) {
  Jacobi jacobi(keys, dim);
  jacobi.Run();
  std::vector<size_t> order(static_cast<size_t>(dim));
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order,
                           [&](size_t a, size_t b) { return jacobi.Value(a) > jacobi.Value(b); });
  std::vector<float> columns;
  columns.reserve(static_cast<size_t>(count * dim));
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const double* const vector = jacobi.Vector(order[i]);
    for (int64_t c = 0; c < dim; ++c) columns.push_back(static_cast<float>(vector[c]));
  }
  return columns;
}

std::vector<float> PartialColumns(const KeyRotations& rotations, int layer, int head,
                                  std::span<const float> keys, int64_t count) {
  const auto dim = static_cast<size_t>(rotations.head_dim);
  const size_t at = static_cast<size_t>(layer) * static_cast<size_t>(rotations.kv_heads) +
                    static_cast<size_t>(head);
  const float* const directions = rotations.directions.data() + at * dim * dim;
  const float* const queries = rotations.queries.data() + at * dim;
  std::vector<double> size(dim);
  for (size_t i = 0; i < dim; ++i) {
    double sum = 0;
    for (size_t row = 0; row < keys.size(); row += dim) {
      float dot = 0;
      for (size_t c = 0; c < dim; ++c) dot += keys[row + c] * directions[i * dim + c];
      sum += std::fabs(static_cast<double>(dot));
    }
    size[i] = static_cast<double>(queries[i]) +
              sum * static_cast<double>(dim) / static_cast<double>(keys.size());
  }
  std::vector<size_t> order(dim);
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return size[a] > size[b]; });
  std::vector<float> columns;
  columns.reserve(static_cast<size_t>(count) * dim);
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const float* const direction = directions + order[i] * dim;
    columns.insert(columns.end(), direction, direction + dim);
  }
  return columns;
}

}  // namespace cairn::worker
