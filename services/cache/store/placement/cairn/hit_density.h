#pragma once
// Learns how blocks of each group are used again with age, and says what it is worth to keep one.
//
// Per group and age bin it counts uses and exposure: the time that blocks of the group spent at
// that age, remembered ones included. Their ratio is a hazard. A group with few blocks leans on the
// shape of all groups together, times the factor by which the group is used more. From hazards
// follows the *hit density* of a block of age a: the most hits per time of room that some keep time
// gives,
//
//     max over m of  P(used within m more seconds) / E[seconds kept until then]
//
// (after Beckmann, Chen, Cidon, "LHD", NSDI 2018, who take the mean over all future instead of the
// best keep time). With F(t) the share of blocks used by age t and G(t) the expected time kept, it
// is the steepest chord of the curve (G, F) that begins at a: the first edge of the upper hull of
// what follows, so one pass from the end finds all.
//
// Not thread-safe.

#include <array>
#include <cstdint>
#include <vector>

#include "services/cache/store/placement/cairn/age_cells.h"
#include "services/cache/store/placement/cairn/block_group.h"

namespace cairn::cache {

class HitDensity {
 public:
  HitDensity();

  // `count` blocks of the group were used at this age.
  void AddUses(BlockGroup group, int bin, uint32_t count) {
    at(group, bin).uses += static_cast<float>(count);
  }
  // Blocks of the group spent `block_slots` at this age.
  void AddExposure(BlockGroup group, int bin, float block_slots) {
    at(group, bin).exposure += block_slots;
  }
  // The counts so far weigh `factor` of later ones.
  void Decay(float factor);
  // Computes the densities again: O(groups x bins).
  void Learn();

  // Hits per block and slot. Changes in Learn only.
  float Density(BlockGroup group, int bin) const {
    return density_[static_cast<size_t>(group) * AgeCells::kBins + static_cast<size_t>(bin)];
  }
  double UsesOf(BlockGroup group) const;
  double ExposureOf(BlockGroup group) const;
  size_t MemoryBytes() const;

 private:
  struct Count {
    float uses = 0;
    float exposure = 0;
  };
  using Hazards = std::array<double, AgeCells::kBins>;

  Count& at(BlockGroup group, int bin) {
    return counts_[static_cast<size_t>(group) * AgeCells::kBins + static_cast<size_t>(bin)];
  }
  const Count& at(BlockGroup group, int bin) const {
    return counts_[static_cast<size_t>(group) * AgeCells::kBins + static_cast<size_t>(bin)];
  }
  Hazards PooledHazards() const;
  Hazards HazardsOf(BlockGroup group, const Hazards& pooled) const;
  void FindDensities(const Hazards& hazards, float* densities) const;

  std::vector<Count> counts_;
  std::vector<float> density_;
};

}  // namespace cairn::cache
