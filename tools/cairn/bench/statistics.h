#pragma once
// The summary of repeated measurements: medians, not means, since a neighbour only ever makes a
// sample slower.

#include <vector>

namespace cairn::cli::bench {

// The middle sample; the mean of both middle ones of an even number. 0 without samples.
double Median(std::vector<double> samples);

// The smallest sample that is not below `share` (0 to 1) of them (nearest rank). 0 without samples.
double Percentile(std::vector<double> samples, double share);

struct Summary {
  double median = 0;
  double min = 0;
  double max = 0;
  double spread = 0;  // (max - min) / median; 0 when the median is 0.
};
Summary Summarize(const std::vector<double>& samples);

// Sample by sample: a ratio of the same moment survives a machine that changes its speed between
// trials. 0 where the yardstick is 0. REQUIRES: equal sizes.
std::vector<double> Ratios(const std::vector<double>& samples,
                           const std::vector<double>& yardstick);

}  // namespace cairn::cli::bench
