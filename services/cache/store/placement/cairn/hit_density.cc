#include "services/cache/store/placement/cairn/hit_density.h"

#include <algorithm>
#include <cmath>

namespace cairn::cache {
namespace {

constexpr int kBins = AgeCells::kBins;
// Blocks whose lives the shape of all groups weighs as much as, in each bin of a group.
constexpr double kShapeBlocks = 2000;
// Uses that the factor which is assumed of a group weighs as much as.
constexpr double kFactorUses = 200;
// Before anything is counted, the hazard is that of a Pareto law: the longer unused, the longer
// until the next use. The order is then that of last use.
constexpr double kPriorBlocks = 500;
constexpr double kPriorShape = 0.25;
constexpr double kPriorScaleSlots = 8;

double MiddleOfBin(int bin) {
  double first = 0;
  for (int b = 0; b < bin; ++b) first += AgeCells::WidthOfBin(b);
  return first + AgeCells::WidthOfBin(bin) / 2;
}

double PriorHazard(int bin) { return kPriorShape / (kPriorScaleSlots + MiddleOfBin(bin)); }

// By how much a group is used more than others, as long as nothing is known about it.
double AssumedFactor(BlockGroup group) {
  const GroupMeaning meaning = MeaningOf(group);
  if (meaning.shared) return 2;
  switch (meaning.next) {
    case NextUse::kUnknown:
      return 1;
    case NextUse::kSoon:
      return 3;
    case NextUse::kLater:
      return 1;
    case NextUse::kNever:
      return 0.05;
  }
  return 1;
}

}  // namespace

HitDensity::HitDensity()
    : counts_(static_cast<size_t>(kGroupCount) * kBins),
      density_(static_cast<size_t>(kGroupCount) * kBins) {
  Learn();
}

void HitDensity::Decay(float factor) {
  for (Count& count : counts_) {
    count.uses *= factor;
    count.exposure *= factor;
  }
}

HitDensity::Hazards HitDensity::PooledHazards() const {
  Hazards pooled;
  for (int bin = 0; bin < kBins; ++bin) {
    double uses = 0, exposure = 0;
    for (int group = 0; group < kGroupCount; ++group) {
      const auto g = static_cast<BlockGroup>(group);
      // Shared blocks are used by everybody: their shape says nothing about a conversation.
      if (IsShared(g)) continue;
      uses += at(g, bin).uses;
      exposure += at(g, bin).exposure;
    }
    const double weight = kPriorBlocks * AgeCells::WidthOfBin(bin);
    pooled[static_cast<size_t>(bin)] = (uses + weight * PriorHazard(bin)) / (exposure + weight);
  }
  return pooled;
}

HitDensity::Hazards HitDensity::HazardsOf(BlockGroup group, const Hazards& pooled) const {
  double uses = 0, expected = 0;
  for (int bin = 0; bin < kBins; ++bin) {
    uses += at(group, bin).uses;
    expected += at(group, bin).exposure * pooled[static_cast<size_t>(bin)];
  }
  const double assumed = AssumedFactor(group);
  const double factor = (uses + kFactorUses * assumed) / (expected + kFactorUses);
  Hazards hazards;
  for (int bin = 0; bin < kBins; ++bin) {
    const Count& count = at(group, bin);
    const double weight = kShapeBlocks * AgeCells::WidthOfBin(bin);
    const double shape = factor * pooled[static_cast<size_t>(bin)];
    hazards[static_cast<size_t>(bin)] =
        std::min((count.uses + weight * shape) / (count.exposure + weight), 1.0);
  }
  return hazards;
}

void HitDensity::Learn() {
  const Hazards pooled = PooledHazards();
  for (int group = 0; group < kGroupCount; ++group) {
    FindDensities(HazardsOf(static_cast<BlockGroup>(group), pooled),
                  density_.data() + static_cast<size_t>(group) * kBins);
  }
}

void HitDensity::FindDensities(const Hazards& hazards, float* densities) const {
  struct Point {
    double kept, used;
  };
  std::array<Point, kBins + 1> curve;
  double left = 1;
  curve[0] = {0, 0};
  for (int bin = 0; bin < kBins; ++bin) {
    const double hazard = std::max(hazards[static_cast<size_t>(bin)], 1e-12);
    const bool last = bin + 1 == kBins;
    const double used = last ? left : left * (1 - std::exp(-hazard * AgeCells::WidthOfBin(bin)));
    const Point& at = curve[static_cast<size_t>(bin)];
    curve[static_cast<size_t>(bin) + 1] = {at.kept + used / hazard, at.used + used};
    left -= used;
  }
  // The upper hull of the points from `bin` on, its first point last.
  std::array<Point, kBins + 1> hull;
  size_t points = 0;
  hull[points++] = curve[kBins];
  const auto slope = [](const Point& a, const Point& b) {
    return (b.used - a.used) / std::max(b.kept - a.kept, 1e-300);
  };
  for (int bin = kBins - 1; bin >= 0; --bin) {
    const Point& at = curve[static_cast<size_t>(bin)];
    while (points > 1 && slope(at, hull[points - 1]) <= slope(hull[points - 1], hull[points - 2])) {
      --points;
    }
    densities[bin] = static_cast<float>(slope(at, hull[points - 1]));
    hull[points++] = at;
  }
}

double HitDensity::UsesOf(BlockGroup group) const {
  double uses = 0;
  for (int bin = 0; bin < kBins; ++bin) uses += at(group, bin).uses;
  return uses;
}

double HitDensity::ExposureOf(BlockGroup group) const {
  double exposure = 0;
  for (int bin = 0; bin < kBins; ++bin) exposure += at(group, bin).exposure;
  return exposure;
}

size_t HitDensity::MemoryBytes() const {
  return counts_.capacity() * sizeof(Count) + density_.capacity() * sizeof(float);
}

}  // namespace cairn::cache
