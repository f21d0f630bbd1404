#include "tools/cairn/bench/statistics.h"

#include <algorithm>
#include <cmath>

namespace cairn::cli::bench {

double Median(std::vector<double> samples) {
  if (samples.empty()) return 0;
  std::sort(samples.begin(), samples.end());
  const size_t middle = samples.size() / 2;
  return samples.size() % 2 == 1 ? samples[middle] : (samples[middle - 1] + samples[middle]) / 2;
}

double Percentile(std::vector<double> samples, double share) {
  if (samples.empty()) return 0;
  const double rank = std::ceil(std::clamp(share, 0.0, 1.0) * static_cast<double>(samples.size()));
  const auto nth =
      samples.begin() + static_cast<std::ptrdiff_t>(rank < 1 ? 0 : static_cast<size_t>(rank) - 1);
  std::nth_element(samples.begin(), nth, samples.end());
  return *nth;
}

Summary Summarize(const std::vector<double>& samples) {
  if (samples.empty()) return {};
  const auto [min, max] = std::minmax_element(samples.begin(), samples.end());
  Summary s{.median = Median(samples), .min = *min, .max = *max, .spread = 0};
  if (s.median != 0) s.spread = (s.max - s.min) / s.median;
  return s;
}

std::vector<double> Ratios(const std::vector<double>& samples,
                           const std::vector<double>& yardstick) {
  std::vector<double> ratios(samples.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    ratios[i] = yardstick[i] == 0 ? 0 : samples[i] / yardstick[i];
  }
  return ratios;
}

}  // namespace cairn::cli::bench
