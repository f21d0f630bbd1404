#include "services/worker/session/cost_model.h"

#include <algorithm>
#include <cmath>

namespace cairn::worker {
namespace {

// Features of about the same size, so that one ridge serves all.
std::array<double, 3> Features(int64_t begin, int64_t tokens) {
  const auto n = static_cast<double>(tokens) / 256;
  const double p = (static_cast<double>(begin) + static_cast<double>(tokens) / 2) / 2048;
  return {1, n, n * p};
}

// Blends a new value in; the first one is taken as it is.
void Blend(double* value, double sample, double weight) {
  *value = *value <= 0 ? sample : (1 - weight) * *value + weight * sample;
}

// Less says nothing about a rate.
constexpr double kLeastSeconds = 0.002;
constexpr uint64_t kLeastBytes = 256 << 10;

}  // namespace

void PrefillModel::Observe(int64_t begin, int64_t tokens, double seconds) {
  if (!(seconds > 0) || tokens <= 0 || begin < 0) return;
  constexpr double kKeep = 0.97;
  std::array<double, 3> x = Features(begin, tokens);
  // Divided by the time: errors count relative to it.
  for (double& value : x) value /= seconds;
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) normal_[i][j] = kKeep * normal_[i][j] + x[i] * x[j];
    target_[i] = kKeep * target_[i] + x[i];
  }
  ++samples_;
  Solve();
}

void PrefillModel::Solve() {
  // Coordinate descent under weights >= 0: a negative one would make a longer chunk look cheaper.
  // The ridge keeps what the samples do not say at zero; tokens carry the least, so that a single
  // sample becomes a speed.
  const double scale = normal_[1][1];
  const std::array<double, 3> ridge = {1e-3 * scale, 1e-9 * scale, 1e-4 * scale};
  for (int round = 0; round < 200; ++round) {
    for (const size_t i : {1u, 2u, 0u}) {
      double rest = target_[i];
      for (size_t j = 0; j < 3; ++j) {
        if (j != i) rest -= normal_[i][j] * weights_[j];
      }
      weights_[i] = std::max(0.0, rest / (normal_[i][i] + ridge[i]));
    }
  }
}

double PrefillModel::Seconds(int64_t begin, int64_t tokens) const {
  if (tokens <= 0) return 0;
  const std::array<double, 3> x = Features(begin, tokens);
  return weights_[0] * x[0] + weights_[1] * x[1] + weights_[2] * x[2];
}

double PrefillModel::RangeSeconds(int64_t begin, int64_t end, int64_t chunk) const {
  double seconds = 0;
  for (int64_t at = begin; at < end; at += chunk) seconds += Seconds(at, std::min(chunk, end - at));
  return seconds;
}

void FetchModel::Observe(const Sample& sample) {
  constexpr double kNew = 0.4;
  FetchRate& rate = rates_[sample.tier];
  const auto measured = [](uint64_t bytes, double seconds) {
    return bytes >= kLeastBytes && seconds >= kLeastSeconds ? static_cast<double>(bytes) / seconds
                                                            : 0;
  };
  const double alone = measured(sample.bytes_alone, sample.seconds_alone);
  const double beside = measured(sample.bytes_beside, sample.seconds_beside);
  if (alone > 0 && beside > 0) {
    Blend(&share_beside_, std::clamp(beside / alone, 0.2, 1.0), 0.3);
  }
  if (alone > 0 && sample.seconds_alone >= sample.seconds_beside / 4) {
    Blend(&rate.bytes_per_second, alone, kNew);
  } else if (beside > 0) {
    Blend(&rate.bytes_per_second, beside / share_beside_, kNew);
  } else if (sample.bytes_alone + sample.bytes_beside >= kLeastBytes) {
    // All of it within a moment: at least so fast.
    const double seconds = std::max(kLeastSeconds, sample.seconds_alone + sample.seconds_beside);
    Blend(&rate.bytes_per_second,
          static_cast<double>(sample.bytes_alone + sample.bytes_beside) / seconds, kNew);
  }
  if (sample.latency_seconds > 0) Blend(&rate.latency_seconds, sample.latency_seconds, kNew);
}

void FetchModel::ObserveSlowdown(double seconds, double expected_seconds) {
  if (!(seconds > 0) || !(expected_seconds > 0)) return;
  Blend(&slowdown_, std::clamp(seconds / expected_seconds, 1.0, 3.0), 0.2);
}

FetchRate FetchModel::Rate(TierKind tier) const {
  return known(tier) ? rates_[tier] : kUnknownRate;
}

LiveRate::LiveRate(double bytes_per_second) : seconds_(kPrior), bytes_(kPrior * bytes_per_second) {}

void LiveRate::Add(double seconds, uint64_t bytes) {
  if (seconds < 0) return;
  const double keep = std::exp(-seconds / kMemory);
  seconds_ = seconds_ * keep + seconds;
  bytes_ = bytes_ * keep + static_cast<double>(bytes);
}

double LiveRate::bytes_per_second() const { return std::max(1.0, bytes_ / seconds_); }

}  // namespace cairn::worker
