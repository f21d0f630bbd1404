#include "services/worker/compute/sampler.h"

#include <algorithm>
#include <cmath>

namespace cairn::worker {

Status Validate(const SamplingOptions& options) {
  // Written so that NaN fails.
  if (!(options.temperature >= 0.0f && options.temperature <= 100.0f)) {
    return InvalidArgument("field 'temperature': got {}, expected 0 to 100", options.temperature);
  }
  if (options.top_k < 0) {
    return InvalidArgument("field 'top_k': got {}, expected 0 (all) or more", options.top_k);
  }
  if (!(options.top_p > 0.0f && options.top_p <= 1.0f)) {
    return InvalidArgument("field 'top_p': got {}, expected more than 0 and at most 1",
                           options.top_p);
  }
  return OkStatus();
}

Sampler::Sampler(const SamplingOptions& options) : options_(options), state_(options.seed) {}

// SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
double Sampler::NextUniform() {
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return static_cast<double>(z >> 11) * 0x1p-53;
}

Result<int32_t> Sampler::Sample(std::span<const float> logits) {
  if (logits.empty()) return InvalidArgument("logits: got none, expected at least one");
  order_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) order_.push_back(static_cast<int32_t>(i));
  }
  if (order_.empty()) return Errorf(StatusCode::kInternal, "all {} logits are NaN", logits.size());
  const auto more_likely = [&logits](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (options_.temperature == 0.0f) {
    return *std::min_element(order_.begin(), order_.end(), more_likely);
  }

  size_t keep = order_.size();
  if (options_.top_k > 0) keep = std::min(keep, static_cast<size_t>(options_.top_k));
  if (keep < order_.size()) {
    std::nth_element(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(keep), order_.end(),
                     more_likely);
    order_.resize(keep);
  }
  // A fixed order makes the sum below, and so the choice, the same everywhere. Without top_k and
  // top_p that of the ids will do.
  if (options_.top_k > 0 || options_.top_p < 1.0f) {
    std::sort(order_.begin(), order_.end(), more_likely);
  }
  const double top =
      logits[static_cast<size_t>(*std::min_element(order_.begin(), order_.end(), more_likely))];
  double sum = 0.0;
  weight_.resize(keep);
  for (size_t i = 0; i < keep; ++i) {
    const double x = logits[static_cast<size_t>(order_[i])];
    // Equal infinities would give NaN.
    weight_[i] = x == top ? 1.0 : std::exp((x - top) / options_.temperature);
    sum += weight_[i];
  }
  if (options_.top_p < 1.0f) {
    const double wanted = sum * options_.top_p;
    double kept = 0.0;
    size_t n = 0;
    while (n < keep && (n == 0 || kept < wanted)) kept += weight_[n++];
    keep = n;
    sum = kept;
  }
  double point = NextUniform() * sum;
  for (size_t i = 0; i < keep; ++i) {
    point -= weight_[i];
    if (point < 0.0) return order_[i];
  }
  return order_[keep - 1];
}

}  // namespace cairn::worker
