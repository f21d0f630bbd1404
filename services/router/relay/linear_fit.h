#pragma once
// A line through measurements, of which recent ones count more.

#include <cstdint>

namespace cairn::router {

// y = intercept + slope x, by least squares. An outlier, more than `kFar` times what the line says,
// counts as that, unless many in a row are. Not thread-safe.
class LinearFit {
 public:
  // `memory`: how many measurements count, about.
  explicit LinearFit(double memory) : keep_(1 - 1 / memory) {}

  // Both finite and not negative.
  void Add(double x, double y);
  uint64_t count() const { return count_; }
  // 0 or more. 0 also where all x are nearly alike.
  double slope() const;
  double intercept() const;
  // Sum of y / sum of x; 0: not known.
  double ratio() const { return sum_x_ > 0 ? sum_y_ / sum_x_ : 0; }
  double At(double x) const { return intercept() + slope() * x; }

 private:
  static constexpr double kFar = 4;
  static constexpr uint64_t kKnown = 8;

  const double keep_;
  uint64_t count_ = 0;
  uint64_t far_ = 0;  // Outliers in a row.
  double weight_ = 0, sum_x_ = 0, sum_y_ = 0, sum_xx_ = 0, sum_xy_ = 0;
};

}  // namespace cairn::router
