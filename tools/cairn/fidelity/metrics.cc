#include "tools/cairn/fidelity/metrics.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace cairn::cli {
namespace {

constexpr int kResamples = 2000;

// log(sum(exp(x))) without overflow. `terms`, if not null, gets exp(x - max(x)), and `total`
// their sum: probabilities without a second exponential, which is what takes the time.
double LogSum(std::span<const float> x, std::vector<double>* terms = nullptr,
              double* total = nullptr) {
  const double top = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (const float v : x) {
    const double term = std::exp(static_cast<double>(v) - top);
    if (terms != nullptr) terms->push_back(term);
    sum += term;
  }
  if (total != nullptr) *total = sum;
  return top + std::log(sum);
}

double Ratio(double value, double weight) { return weight > 0 ? value / weight : 0; }

}  // namespace

int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Divergence Compare(std::span<const float> full, std::span<const float> other, int32_t next) {
  std::vector<double> terms;
  terms.reserve(full.size());
  double total = 0;
  const double full_sum = LogSum(full, &terms, &total);
  const double other_sum = LogSum(other);
  Divergence out;
  for (size_t i = 0; i < full.size(); ++i) {
    const double p = static_cast<double>(full[i]) - full_sum;
    const double q = static_cast<double>(other[i]) - other_sum;
    out.kl += terms[i] * (p - q);
  }
  out.kl /= total;
  const auto n = static_cast<size_t>(next);
  out.full_nll = full_sum - static_cast<double>(full[n]);
  out.other_nll = other_sum - static_cast<double>(other[n]);
  out.same_top1 = ArgMax(full) == ArgMax(other);
  return out;
}

Interval Bootstrap(std::span<const Group> groups) {
  Interval out;
  if (groups.empty()) return out;
  double value = 0;
  double weight = 0;
  for (const Group& g : groups) {
    value += g.value;
    weight += g.weight;
  }
  out.mean = Ratio(value, weight);
  std::mt19937_64 random(20260101);
  std::vector<double> means;
  means.reserve(kResamples);
  for (int i = 0; i < kResamples; ++i) {
    double v = 0;
    double w = 0;
    for (size_t k = 0; k < groups.size(); ++k) {
      // Not a std distribution: these differ between libraries.
      const Group& g = groups[random() % groups.size()];
      v += g.value;
      w += g.weight;
    }
    means.push_back(Ratio(v, w));
  }
  std::sort(means.begin(), means.end());
  out.low = means[static_cast<size_t>(0.025 * kResamples)];
  out.high = means[static_cast<size_t>(0.975 * kResamples) - 1];
  return out;
}

}  // namespace cairn::cli
