#include "services/router/relay/linear_fit.h"

#include <algorithm>

namespace cairn::router {

void LinearFit::Add(double x, double y) {
  if (count_ >= kKnown) {
    const double most = kFar * At(x);
    if (y > most && ++far_ < kKnown) {
      y = most;
    } else if (y <= most) {
      far_ = 0;
    }
  }
  ++count_;
  weight_ = weight_ * keep_ + 1;
  sum_x_ = sum_x_ * keep_ + x;
  sum_y_ = sum_y_ * keep_ + y;
  sum_xx_ = sum_xx_ * keep_ + x * x;
  sum_xy_ = sum_xy_ * keep_ + x * y;
}

double LinearFit::slope() const {
  if (weight_ <= 0) return 0;
  const double variance = sum_xx_ - sum_x_ * sum_x_ / weight_;
  const double covariance = sum_xy_ - sum_x_ * sum_y_ / weight_;
  // Measurements that are nearly alike say nothing about the slope.
  if (variance <= 1e-3 * sum_xx_ || covariance <= 0) return 0;
  const double slope = covariance / variance;
  // A line that cuts the axis below 0 is taken through it.
  return std::min(slope, ratio());
}

double LinearFit::intercept() const {
  return weight_ <= 0 ? 0 : std::max(0.0, (sum_y_ - slope() * sum_x_) / weight_);
}

}  // namespace cairn::router
